// The folder of a checkpoint as a whole: made beside its target, published by one rename, replaced without a moment in
// which a reader, or a machine that loses power, would find neither the old nor the new one.
#pragma once

#include <string>
#include <vector>

#include "bindings/file.h"

namespace moonflow {

// The names of what a checkpoint holds besides one folder per variable.
constexpr const char* kManifest = "manifest.json";
constexpr const char* kDone = "snapshot_done";  // the original's sign that a checkpoint is complete

class NewDirectory {
 public:
  // Makes a folder beside `target`. Removes what killed writers left there.
  // Throws when the target is not empty and `overwrite` is false, or when it holds anything that is no checkpoint.
  NewDirectory(std::string target, bool overwrite);
  // Removes the folder, unless it was published.
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  void make_folder(const std::string& name);
  // Writes a file; `name` may lead into a folder.
  void write(const std::string& name, const void* data, int64_t bytes);
  // Syncs everything and puts the folder in the place of the target, for good once this returns.
  void publish();

 private:
  bool make_beside(int number);
  void sync_all();
  bool exchange();

  std::string target_;
  std::string beside_;
  bool overwrite_;
  bool published_ = false;
  Descriptor directory_;               // locked: its maker lives
  std::vector<std::string> unsynced_;  // files and folders in it
};

// Opens a checkpoint for reading. Where a crash came between the two renames of a file system that cannot exchange,
// this is the old one under its second name.
Descriptor open_checkpoint(const std::string& path);

// Removes a folder that holds a checkpoint and nothing else.
void remove_whole_checkpoint(const std::string& path);

}  // namespace moonflow
