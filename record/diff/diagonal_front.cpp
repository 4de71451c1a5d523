// SPDX-License-Identifier: MIT
#include "record/diff/diagonal_front.hpp"

#include <algorithm>

namespace heddle::diff {
namespace {

/// One end's front: its cells for diagonals center - reach .. center + reach, grown as needed.
class Front {
 public:
  /// Diagonals are kept within [lowest, highest], where the table has cells at all.
  Front(std::int32_t center, std::int32_t lowest, std::int32_t highest, std::int32_t first_reach)
      : center_(center), lowest_(lowest), highest_(highest) {
    grow(first_reach);
  }

  std::int32_t lo() const { return std::max(center_ - edits_, lowest_); }
  std::int32_t hi() const { return std::min(center_ + edits_, highest_); }
  const std::int32_t* cells() const { return now_.data() + shift_; }

  /// Sets up the cells of 0 edits: only the center diagonal, from its very start.
  template <class Kernel>
  void start(FrontStep step, Kernel kernel) {
    // As if an edit had just been made into (0, 0): the kernel then only slides.
    old_[static_cast<std::size_t>(center_ + shift_)] = -1;
    run(step, kernel);
    old_[static_cast<std::size_t>(center_ + shift_)] = kUnreached;
  }
  template <class Kernel>
  void advance(FrontStep step, Kernel kernel) {
    ++edits_;
    if (edits_ > reach_) grow(reach_ * 2);
    std::swap(old_, now_);
    run(step, kernel);
  }
  std::uint32_t edits() const { return static_cast<std::uint32_t>(edits_); }

 private:
  template <class Kernel>
  void run(FrontStep step, Kernel kernel) {
    step.lo = lo();
    step.hi = hi();
    step.old = old_.data() + shift_;
    step.now = now_.data() + shift_;
    kernel(step);
  }
  void grow(std::int32_t reach) {
    reach = std::max(reach, 16);
    std::vector<std::int32_t> old(static_cast<std::size_t>(2 * reach + 5), kUnreached);
    std::vector<std::int32_t> now = old;
    const std::int32_t shift = reach + 2 - center_;
    if (reach_ > 0)
      for (std::int32_t k = center_ - reach_ - 2; k <= center_ + reach_ + 2; ++k)
        now[static_cast<std::size_t>(k + shift)] = now_[static_cast<std::size_t>(k + shift_)];
    old_ = std::move(old);
    now_ = std::move(now);
    shift_ = shift;
    reach_ = reach;
  }

  std::int32_t center_, lowest_, highest_;
  std::int32_t edits_ = 0;
  std::int32_t reach_ = 0;
  std::int32_t shift_ = 0;
  std::vector<std::int32_t> old_, now_;
};

struct Forward {
  static std::int32_t equal(const FrontStep& s, std::int32_t i, std::int32_t k, std::int32_t end) {
    const Token* a = s.a + i;
    const Token* b = s.b + i + k;
    std::int32_t n = 0;
    while (n < end - i && a[n] == b[n]) ++n;
    return n;
  }
  static std::int32_t reach(const FrontStep& s, std::int32_t k) {
    return std::max({s.old[k] + 1, s.old[k - 1], s.old[k + 1] + 1});
  }
  static std::int32_t end(const FrontStep& s, std::int32_t k) { return std::min(s.n, s.m - k); }
};

/// Seen from the other corner: i counts from the end, and diagonal k is m - n - k there.
struct Backward {
  static std::int32_t equal(const FrontStep& s, std::int32_t i, std::int32_t k, std::int32_t end) {
    const Token* a = s.a - i;
    const Token* b = s.b - i - (s.m - s.n - k);
    std::int32_t n = 0;
    while (n < end - i && a[-1 - n] == b[-1 - n]) ++n;
    return n;
  }
  static std::int32_t reach(const FrontStep& s, std::int32_t k) {
    return std::max({s.old[k] + 1, s.old[k + 1], s.old[k - 1] + 1});
  }
  static std::int32_t end(const FrontStep& s, std::int32_t k) { return std::min(s.n, s.n + k); }
};

template <class Direction>
void step_scalar(const FrontStep& s) {
  for (std::int32_t k = s.lo; k <= s.hi; ++k) {
    const std::int32_t end = Direction::end(s, k);
    const std::int32_t i = std::min(Direction::reach(s, k), end);
    s.now[k] = i + Direction::equal(s, i, k, end);
  }
}

}  // namespace

void step_forward_scalar(const FrontStep& step) { step_scalar<Forward>(step); }
void step_backward_scalar(const FrontStep& step) { step_scalar<Backward>(step); }

std::int32_t find_meeting_scalar(const std::int32_t* f, const std::int32_t* g, std::int32_t lo,
                                 std::int32_t hi, std::int32_t n) {
  while (lo <= hi && f[lo] + g[lo] < n) ++lo;
  return lo;
}

std::optional<Cut> cut_by_diagonals(Tokens a, Tokens b, std::uint32_t limit, Simd level) {
  const auto n = static_cast<std::int32_t>(a.size());
  const auto m = static_cast<std::int32_t>(b.size());
  auto* forward_kernel = step_forward_scalar;
  auto* backward_kernel = step_backward_scalar;
  auto* find_meeting = find_meeting_scalar;
#if defined(__x86_64__)
  if (level >= Simd::avx2) {
    forward_kernel = step_forward_avx2;
    backward_kernel = step_backward_avx2;
    find_meeting = find_meeting_avx2;
  }
#endif
  const auto first_reach = static_cast<std::int32_t>(std::min(limit / 2 + 1, 1024U));
  Front forward(0, -n, m, first_reach);
  Front backward(m - n, -n, m, first_reach);
  const FrontStep forward_step{a.data(), b.data(), n, m, 0, 0, nullptr, nullptr};
  const FrontStep backward_step{a.data() + n, b.data() + m, n, m, 0, 0, nullptr, nullptr};
  forward.start(forward_step, forward_kernel);
  backward.start(backward_step, backward_kernel);
  for (std::uint32_t edits = 0;; ++edits) {
    const std::int32_t lo = std::max(forward.lo(), backward.lo());
    const std::int32_t hi = std::min(forward.hi(), backward.hi());
    const std::int32_t k = find_meeting(forward.cells(), backward.cells(), lo, hi, n);
    if (lo <= hi && k <= hi) {
      const auto i = static_cast<std::uint32_t>(forward.cells()[k]);
      return Cut{edits, forward.edits(), i, static_cast<std::uint32_t>(forward.cells()[k] + k)};
    }
    if (edits == limit) return std::nullopt;
    if (edits % 2 == 0) {
      forward.advance(forward_step, forward_kernel);
    } else {
      backward.advance(backward_step, backward_kernel);
    }
  }
}

}  // namespace heddle::diff
