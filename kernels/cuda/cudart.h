// The CUDA runtime of a card. The driver is reached through it alone, so that a machine without one only hears why.
#pragma once

#include <driver_types.h>

#include <map>
#include <memory>
#include <mutex>

#include "kernels/cuda.h"
#include "kernels/cuda/runtime.h"

namespace moonflow::cuda {

// Throws what CUDA says of a call, and what to do where that has ended the context.
void check(cudaError_t status);

CudaProbe probe_cards();

// `index` is that of a card of probe_cards.
std::unique_ptr<Runtime> make_cudart(int index);

// That of the calling thread.
int current_card();

// The T of the current card, made when it is first asked for and never destroyed: the handle of a library, or code,
// which belongs to one card, serves all sessions, and could not be given back once the card is gone.
template <class T>
std::shared_ptr<T> kept_for_card() {
  static std::mutex mutex;
  static auto* const kept = new std::map<int, std::shared_ptr<T>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<T>& of_card = (*kept)[current_card()];
  if (!of_card) of_card = std::make_shared<T>();
  return of_card;
}

}  // namespace moonflow::cuda
