// error.h: what is said of a fault on its way out.
#include "engine/error.h"

#include <catch2/catch.hpp>
#include <new>
#include <stdexcept>

using namespace moonflow;

namespace {

template <class Work>
Error error_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no Error was thrown");
  throw std::logic_error("not reached");
}

}  // namespace

TEST_CASE("an error gets the op and the line to blame") {
  const auto blamed = [](const auto& fault) {
    return error_of([&] { blaming("matmul 'hidden'", "net.lua:7", [&] { throw fault; }); });
  };
  CHECK(blamed(Error(ErrorCode::OutOfRange, "too far")).describe() == "net.lua:7: matmul 'hidden': too far");
  CHECK(blamed(Error(ErrorCode::OutOfRange, "too far")).code == ErrorCode::OutOfRange);

  SECTION("unless it knows better") {
    Error known(ErrorCode::Io, "gone");
    known.op = "gather 'rows'";
    CHECK(blamed(known).describe() == "net.lua:7: gather 'rows': gone");
    known.where = "net.lua:3";
    CHECK(blamed(known).describe() == "net.lua:3: gather 'rows': gone");
  }
  SECTION("whatever was thrown") {
    CHECK(blamed(std::bad_alloc()).code == ErrorCode::OutOfMemory);
    CHECK(blamed(std::bad_alloc()).op == "matmul 'hidden'");
    CHECK(blamed(std::length_error("vector::reserve")).code == ErrorCode::OutOfMemory);  // more than there ever is
    CHECK(blamed(std::runtime_error("below us")).code == ErrorCode::Internal);
    CHECK(blamed(std::runtime_error("below us")).describe() == "net.lua:7: matmul 'hidden': below us");
  }
  SECTION("and what went well is given back") {
    int place = 0;
    int& given = blaming("op", "line", [&]() -> int& { return place; });
    CHECK(&given == &place);
  }
}

TEST_CASE("a message begins with where its fault was met") {
  const Error error = error_of(
      [] { prefixing([] { fail(ErrorCode::Io, "ends after ", 3, " bytes"); }, "file '", "a.npy", "', record ", 2); });
  CHECK(error.code == ErrorCode::Io);
  CHECK(std::string(error.what()) == "file 'a.npy', record 2: ends after 3 bytes");
  CHECK(prefixing([] { return 5; }, "unused") == 5);
}
