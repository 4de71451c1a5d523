// SPDX-License-Identifier: MIT

// Compilers may call these four for plain C++, even when freestanding (GCC manual, "Standards").

extern "C" {

__attribute__((visibility("hidden"))) void* memcpy(void* to, const void* from, unsigned long n) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  for (unsigned long i = 0; i < n; ++i) out[i] = in[i];
  return to;
}

__attribute__((visibility("hidden"))) void* memmove(void* to, const void* from, unsigned long n) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  if (out <= in) return memcpy(to, from, n);
  while (n--) out[n] = in[n];
  return to;
}

__attribute__((visibility("hidden"))) void* memset(void* to, int byte, unsigned long n) {
  auto* out = static_cast<char*>(to);
  for (unsigned long i = 0; i < n; ++i) out[i] = static_cast<char>(byte);
  return to;
}

__attribute__((visibility("hidden"))) int memcmp(const void* a, const void* b, unsigned long n) {
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  for (unsigned long i = 0; i < n; ++i)
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}

}  // extern "C"
