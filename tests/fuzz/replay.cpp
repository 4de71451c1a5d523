// SPDX-License-Identifier: MIT
//
// Runs a target without libFuzzer, with any compiler and sanitizer: its seeds, the corpus, then
// mutations of both until the time limit. An input that ends the process is saved and named.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>

#include "tests/fuzz/target.hpp"

namespace heddle::fuzz {
namespace {

class Mutator {
 public:
  Mutator(std::string bytes, const std::vector<std::string>& others, std::mt19937_64& random)
      : bytes_(std::move(bytes)), others_(others), random_(random) {}

  void step() {
    switch (below(7)) {
      case 0:
        if (!bytes_.empty()) bytes_[place()] ^= static_cast<char>(1U << below(8));
        break;
      case 1:
        if (!bytes_.empty()) bytes_[place()] = static_cast<char>(below(256));
        break;
      case 2:
        put_number();
        break;
      case 3:
        bytes_.erase(below(bytes_.size() + 1), below(64));
        break;
      case 4: {
        const std::size_t from = below(bytes_.size() + 1);
        bytes_.insert(below(bytes_.size() + 1), bytes_.substr(from, below(64)));
        break;
      }
      case 5: {
        const std::string& other = others_[below(others_.size())];
        const std::string piece = other.substr(below(other.size() + 1), below(256));
        const std::size_t at = below(bytes_.size() + 1);
        bytes_.replace(at, below(2) ? piece.size() : 0, piece);
        break;
      }
      default:
        if (below(8) == 0) bytes_.resize(below(bytes_.size() + 1));
        break;
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }
  std::size_t place() { return below(bytes_.size()); }

  void put_number() {
    static constexpr std::uint64_t kOdd[] = {
        0,         1,          0x7f,       0x80,       0xff,           0x7fff,
        0xffff,    0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff,     UINT64_C(1) << 62,
        INT64_MAX, UINT64_MAX, bytes_max,  4096,       UINT64_MAX - 7, UINT64_C(1) << 32};
    std::uint64_t value = kOdd[below(std::size(kOdd))];
    if (value == bytes_max) value = bytes_.size() + below(3) - 1;
    const std::size_t width = std::size_t{1} << below(4);
    if (bytes_.size() < width) return;
    std::memcpy(bytes_.data() + below(bytes_.size() - width + 1), &value, width);
  }
  static constexpr std::uint64_t bytes_max = 0x5EED;  ///< replaced by the input's length

  std::string bytes_;
  const std::vector<std::string>& others_;
  std::mt19937_64& random_;
};

/// `bytes` with a few small changes: bits, bytes, boundary values, pieces removed, doubled, and
/// copied from `others` (not empty).
std::string mutated(std::string bytes, const std::vector<std::string>& others,
                    std::mt19937_64& random) {
  Mutator mutator(std::move(bytes), others, random);
  for (std::size_t steps = 1 + random() % 6; steps > 0; --steps) mutator.step();
  return mutator.take();
}

/// For the signal handler.
std::string_view g_input;
std::string g_saved_path;

void save_input(int signal) {
  const int fd = ::open(g_saved_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  (void)!::write(fd, g_input.data(), g_input.size());
  for (const std::string_view text : {std::string_view("fuzz: the failing input is "),
                                      std::string_view(g_saved_path), std::string_view("\n")})
    (void)!::write(STDERR_FILENO, text.data(), text.size());
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void run_copy(std::string_view bytes) {
  // A copy, so that AddressSanitizer sees accesses behind its end.
  const std::vector<char> copy(bytes.begin(), bytes.end());
  g_input = {copy.data(), copy.size()};
  run(g_input);
}

std::vector<std::string> inputs_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(directory.c_str()), ::closedir);
  while (list) {
    const dirent* entry = ::readdir(list.get());
    if (!entry) break;
    if (entry->d_name[0] != '.') names.emplace_back(directory + "/" + entry->d_name);
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> out;
  for (const auto& name : names) out.push_back(value_or_throw(read_file(name)));
  return out;
}

int write_seeds(const std::string& directory) {
  std::size_t number = 0;
  for (const auto& seed : seeds()) {
    const std::string path = directory + "/seed-" + std::to_string(number++);
    const auto file = value_or_throw(open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
    value_or_throw(write_all(file.get(), seed, path));
  }
  return 0;
}

int replay(const std::string& corpus) {
  const char* temp = std::getenv("TMPDIR");
  g_saved_path = std::string(temp ? temp : "/tmp") + "/fuzz-input-" + std::to_string(::getpid());
  for (const int n : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) ::signal(n, save_input);

  std::vector<std::string> inputs = seeds();
  const std::size_t sound = inputs.size();
  for (auto& input : inputs_in(corpus)) inputs.push_back(std::move(input));
  for (const auto& input : inputs) run_copy(input);

  const char* text = std::getenv("HEDDLE_TEST_SECONDS");
  const std::chrono::duration<double> limit(text ? std::atof(text) : 0.5);
  std::random_device device;
  std::mt19937_64 random(device());
  std::size_t tried = 0;
  for (const auto begin = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - begin < limit; ++tried)
    run_copy(mutated(inputs[random() % inputs.size()], inputs, random));
  std::printf("summary: %zu seeds, %zu corpus inputs, %zu mutations\n", sound,
              inputs.size() - sound, tried);
  return 0;
}

}  // namespace
}  // namespace heddle::fuzz

// usage: TARGET CORPUS-DIRECTORY | --write-seeds DIRECTORY
int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--write-seeds")
    return heddle::fuzz::write_seeds(argv[2]);
  if (argc == 2) return heddle::fuzz::replay(argv[1]);
  std::fprintf(stderr, "usage: %s CORPUS-DIRECTORY | --write-seeds DIRECTORY\n", argv[0]);
  return 2;
}
