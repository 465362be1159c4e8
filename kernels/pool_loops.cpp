// The loops of pooling; see pool_loops.h. Planes are shared out over the threads, and each element is one thread's, so
// results do not depend on the number of threads.
#include "kernels/pool_loops.h"

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace moonflow {
namespace {

int64_t image_plane(const Pool& pool) { return pool.image.height * pool.image.width * pool.lanes; }
int64_t out_plane(const Pool& pool) { return pool.out.height * pool.out.width * pool.lanes; }

template <class Body>
void each_plane(const Pool& pool, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, cpu::kGrain / std::max<int64_t>(1, image_plane(pool)));
  cpu::parallel_for(pool.planes, grain, [&](int64_t first, int64_t last) {
    cpu::widest([&] {
      for (int64_t plane = first; plane < last; ++plane) body(plane);
    });
  });
}

// What window (oy, ox) sees of a plane: body(k, at) for each place k of the window that lies in the image, in row-major
// order, where `at` is the offset of the place's first lane.
template <class Body>
inline void each_place(const Pool& pool, int64_t oy, int64_t ox, const Body& body) {
  const Window &vertical = pool.windows[0], &horizontal = pool.windows[1];
  const int64_t first_j = horizontal.first(ox), last_j = horizontal.last(ox);
  for (int64_t i = vertical.first(oy); i < vertical.last(oy); ++i) {
    const int64_t row = (vertical.start(oy) + i) * pool.image.width + horizontal.start(ox);
    for (int64_t j = first_j; j < last_j; ++j) {
      body(static_cast<int32_t>(i * horizontal.size + j), (row + j) * pool.lanes);
    }
  }
}

int64_t places(const Pool& pool, int64_t oy, int64_t ox) {
  const Window &vertical = pool.windows[0], &horizontal = pool.windows[1];
  return (vertical.last(oy) - vertical.first(oy)) * (horizontal.last(ox) - horizontal.first(ox));
}

// Lanes are handled in groups of constant width, so that the compiler turns a group into vectors.
template <class Body>
inline void each_lane_group(int64_t lanes, const Body& body) {
  int64_t lane = 0;
  for (; lane + 16 <= lanes; lane += 16) body(std::integral_constant<int, 16>(), lane);
  for (; lane + 8 <= lanes; lane += 8) body(std::integral_constant<int, 8>(), lane);
  for (; lane < lanes; ++lane) body(std::integral_constant<int, 1>(), lane);
}

// The first maximum of a window in each of `kWidth` lanes, and its place.
template <class T, int kWidth>
struct Maximum {
  T value[kWidth];
  int32_t place[kWidth];

  inline void find(const Pool& pool, int64_t oy, int64_t ox, const T* x) {
    const Window &vertical = pool.windows[0], &horizontal = pool.windows[1];
    const int64_t first_i = vertical.first(oy), first_j = horizontal.first(ox);
    const T* first =
        x + ((vertical.start(oy) + first_i) * pool.image.width + horizontal.start(ox) + first_j) * pool.lanes;
#pragma omp simd
    for (int i = 0; i < kWidth; ++i) {
      value[i] = first[i];
      place[i] = static_cast<int32_t>(first_i * horizontal.size + first_j);
    }
    each_place(pool, oy, ox, [&](int32_t k, int64_t at) {
      const T* element = x + at;
#pragma omp simd
      for (int i = 0; i < kWidth; ++i) {
        const bool larger = element[i] > value[i];
        value[i] = larger ? element[i] : value[i];
        place[i] = larger ? k : place[i];
      }
    });
  }
};

bool disjoint(const Pool& pool) {
  return pool.windows[0].stride >= pool.windows[0].size && pool.windows[1].stride >= pool.windows[1].size;
}

// Whether disjoint windows see the element at this place of an axis.
bool covered(const Window& window, int64_t at) {
  const int64_t from = at + window.before;
  return from % window.stride < window.size && from / window.stride < window.out;
}

bool all_covered(const Window& window) {
  for (int64_t at = 0; at < window.in; ++at) {
    if (!covered(window, at)) return false;
  }
  return true;
}

// Disjoint windows: each is read once and then written, so dx may lie over x.
template <class T, int kWidth>
inline void max_grad_disjoint(const Pool& pool, bool relu, const T* dy, const T* x, T* dx) {
  for (int64_t oy = 0; oy < pool.out.height; ++oy) {
    for (int64_t ox = 0; ox < pool.out.width; ++ox) {
      Maximum<T, kWidth> maximum;
      maximum.find(pool, oy, ox, x);
      const T* gradient = dy + (oy * pool.out.width + ox) * pool.lanes;
      T passed[kWidth];
#pragma omp simd
      for (int i = 0; i < kWidth; ++i) passed[i] = relu && !(maximum.value[i] > 0) ? T(0) : gradient[i];
      each_place(pool, oy, ox, [&](int32_t k, int64_t at) {
        T* element = dx + at;
#pragma omp simd
        for (int i = 0; i < kWidth; ++i) element[i] = maximum.place[i] == k ? passed[i] : T(0);
      });
    }
  }
}

template <class T>
void clear_uncovered(const Pool& pool, T* dx) {
  for (int64_t y = 0; y < pool.image.height; ++y) {
    const bool row = covered(pool.windows[0], y);
    for (int64_t x = 0; x < pool.image.width; ++x) {
      if (row && covered(pool.windows[1], x)) continue;
      T* element = dx + (y * pool.image.width + x) * pool.lanes;
      std::fill(element, element + pool.lanes, T(0));
    }
  }
}

// Windows that overlap: the places of all maxima of the plane are found before anything is written.
template <class T, int kWidth>
inline void find_places(const Pool& pool, bool relu, const T* x, int32_t* places) {
  for (int64_t oy = 0; oy < pool.out.height; ++oy) {
    for (int64_t ox = 0; ox < pool.out.width; ++ox) {
      Maximum<T, kWidth> maximum;
      maximum.find(pool, oy, ox, x);
      int32_t* to = places + (oy * pool.out.width + ox) * pool.lanes;
#pragma omp simd
      for (int i = 0; i < kWidth; ++i) to[i] = relu && !(maximum.value[i] > 0) ? -1 : maximum.place[i];
    }
  }
}

template <class T, int kWidth>
inline void add_at_places(const Pool& pool, const T* dy, const int32_t* places, T* dx) {
  for (int64_t oy = 0; oy < pool.out.height; ++oy) {
    for (int64_t ox = 0; ox < pool.out.width; ++ox) {
      const int64_t from = (oy * pool.out.width + ox) * pool.lanes;
      const T* gradient = dy + from;
      const int32_t* place = places + from;
      each_place(pool, oy, ox, [&](int32_t k, int64_t at) {
        T* element = dx + at;
#pragma omp simd
        for (int i = 0; i < kWidth; ++i) element[i] += place[i] == k ? gradient[i] : T(0);
      });
    }
  }
}

}  // namespace

int64_t max_pool_grad_scratch(const Pool& pool) {
  return disjoint(pool) ? 0 : pool.planes * out_plane(pool) * static_cast<int64_t>(sizeof(int32_t));
}

template <class T>
void max_pool_grad(const Pool& pool, bool relu, const T* dy, const T* x, T* dx, int32_t* scratch) {
  const bool clear = !all_covered(pool.windows[0]) || !all_covered(pool.windows[1]);
  const bool is_disjoint = disjoint(pool);
  each_plane(pool, [&](int64_t plane) {
    const T* gradient = dy + plane * out_plane(pool);
    const T* from = x + plane * image_plane(pool);
    T* to = dx + plane * image_plane(pool);
    if (is_disjoint) {
      each_lane_group(pool.lanes, [&](auto width, int64_t lane) {
        max_grad_disjoint<T, width.value>(pool, relu, gradient + lane, from + lane, to + lane);
      });
      if (clear) clear_uncovered(pool, to);
      return;
    }
    int32_t* places = scratch + plane * out_plane(pool);
    each_lane_group(pool.lanes, [&](auto width, int64_t lane) {
      find_places<T, width.value>(pool, relu, from + lane, places + lane);
    });
    std::fill(to, to + image_plane(pool), T(0));
    each_lane_group(pool.lanes, [&](auto width, int64_t lane) {
      add_at_places<T, width.value>(pool, gradient + lane, places + lane, to + lane);
    });
  });
}

template <class T>
void max_pool(const Pool& pool, const T* x, T* out) {
  each_plane(pool, [&](int64_t plane) {
    each_lane_group(pool.lanes, [&](auto width, int64_t lane) {
      const T* from = x + plane * image_plane(pool) + lane;
      T* to = out + plane * out_plane(pool) + lane;
      for (int64_t oy = 0; oy < pool.out.height; ++oy) {
        for (int64_t ox = 0; ox < pool.out.width; ++ox) {
          Maximum<T, width.value> maximum;
          maximum.find(pool, oy, ox, from);
          std::copy(maximum.value, maximum.value + width.value, to + (oy * pool.out.width + ox) * pool.lanes);
        }
      }
    });
  });
}

template <class T>
void avg_pool(const Pool& pool, const T* x, T* out) {
  each_plane(pool, [&](int64_t plane) {
    const T* from = x + plane * image_plane(pool);
    for (int64_t oy = 0; oy < pool.out.height; ++oy) {
      for (int64_t ox = 0; ox < pool.out.width; ++ox) {
        const T share = T(1) / static_cast<T>(places(pool, oy, ox));
        T* to = out + plane * out_plane(pool) + (oy * pool.out.width + ox) * pool.lanes;
        for (int64_t lane = 0; lane < pool.lanes; ++lane) {
          T sum = 0;
          each_place(pool, oy, ox, [&](int32_t, int64_t at) { sum += from[at + lane]; });
          to[lane] = sum * share;
        }
      }
    }
  });
}

template <class T>
void avg_pool_grad(const Pool& pool, const T* dy, T* dx) {
  each_plane(pool, [&](int64_t plane) {
    T* to = dx + plane * image_plane(pool);
    std::fill(to, to + image_plane(pool), T(0));
    for (int64_t oy = 0; oy < pool.out.height; ++oy) {
      for (int64_t ox = 0; ox < pool.out.width; ++ox) {
        const T share = T(1) / static_cast<T>(places(pool, oy, ox));
        const T* gradient = dy + plane * out_plane(pool) + (oy * pool.out.width + ox) * pool.lanes;
        for (int64_t lane = 0; lane < pool.lanes; ++lane) {
          each_place(pool, oy, ox, [&](int32_t, int64_t at) { to[at + lane] += gradient[lane] * share; });
        }
      }
    }
  });
}

#define MOONFLOW_POOL_LOOPS(T)                            \
  template void max_pool(const Pool&, const T*, T*);      \
  template void avg_pool(const Pool&, const T*, T*);      \
  template void avg_pool_grad(const Pool&, const T*, T*); \
  template void max_pool_grad(const Pool&, bool, const T*, const T*, T*, int32_t*);
MOONFLOW_POOL_LOOPS(float)
MOONFLOW_POOL_LOOPS(double)
#undef MOONFLOW_POOL_LOOPS

}  // namespace moonflow
