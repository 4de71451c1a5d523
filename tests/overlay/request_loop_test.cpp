// SPDX-License-Identifier: MIT
// The threads that read requests: how many there are, and how they end. The kernel's side is
// played.
#include "fuseovl/session/request_loop.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/resource.h>

#include <cstring>
#include <deque>
#include <thread>

#include "base/sandbox/sanitized.hpp"
#include "fuseovl/session/session.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// What the kernel has to say, to whom reads it first; then readers wait for the end.
class Kernel : public SessionClient {
 public:
  void on_request(std::uint32_t) noexcept override {}

  void ask(std::uint32_t opcode, std::string_view arguments = {}) {
    std::string request(sizeof(fuse_in_header) + arguments.size(), '\0');
    fuse_in_header header{};
    header.len = static_cast<std::uint32_t>(request.size());
    header.opcode = opcode;
    header.nodeid = FUSE_ROOT_ID;
    std::memcpy(request.data(), &header, sizeof(header));
    std::copy(arguments.begin(), arguments.end(), request.begin() + sizeof(header));
    put({std::move(request), 0});
  }
  /// What keeps a thread busy until release().
  void ask_attributes() { ask(FUSE_GETATTR, std::string(sizeof(fuse_getattr_in), '\0')); }
  void fail_one_read(int error) { put({{}, error}); }
  /// The connection is gone: all that read are told.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  ssize_t read(void* buffer, std::size_t size) {
    std::unique_lock lock(mutex_);
    ++reading_;
    changed_.wait(lock, [this] { return ended_ || !said_.empty(); });
    --reading_;
    if (said_.empty()) return errno = ENODEV, -1;
    const Said said = std::move(said_.front());
    said_.pop_front();
    if (said.error != 0) return errno = said.error, -1;
    EXPECT_GE(size, said.request.size());
    std::memcpy(buffer, said.request.data(), said.request.size());
    return static_cast<ssize_t>(said.request.size());
  }

  /// How many threads wait for a request.
  unsigned reading() {
    const std::lock_guard lock(mutex_);
    return reading_;
  }

  /// GETATTR is answered when the test says so.
  void getattr(fuse_req_t request) {
    std::unique_lock lock(mutex_);
    ++busy_;
    changed_.wait(lock, [this] { return released_; });
    --busy_;
    ++answered_;
    fuse_reply_err(request, EIO);
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  unsigned busy() {
    const std::lock_guard lock(mutex_);
    return busy_;
  }
  unsigned answered() {
    const std::lock_guard lock(mutex_);
    return answered_;
  }

 private:
  struct Said {
    std::string request;
    int error;
  };
  void put(Said said) {
    const std::lock_guard lock(mutex_);
    said_.push_back(std::move(said));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Said> said_;
  bool ended_ = false;
  bool released_ = false;
  unsigned reading_ = 0;
  unsigned busy_ = 0;
  unsigned answered_ = 0;
};

void on_init(void*, fuse_conn_info* connection) { connection->max_read = 1U << 20; }

void on_getattr(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
  Session::client<Kernel>(request).getattr(request);
}

class RequestLoops : public ::testing::Test {
 protected:
  RequestLoops() : session_(make_session()) {
    fuse_init_in in{};
    in.major = FUSE_KERNEL_VERSION;
    in.minor = FUSE_KERNEL_MINOR_VERSION;
    kernel_.ask(FUSE_INIT, {reinterpret_cast<const char*>(&in), sizeof(in)});
  }
  ~RequestLoops() override {
    kernel_.release();
    kernel_.end();
    if (running_.joinable()) running_.join();
    // Threads that a failure has left behind use what is about to go.
    EXPECT_TRUE(wait_until(5s, [this] { return loop_.expired(); }));
  }

  void run(unsigned threads) {
    auto loop = std::make_shared<RequestLoop>(
        session_.raw(), threads,
        [this](void* buffer, std::size_t n) { return kernel_.read(buffer, n); });
    loop_ = loop;
    running_ = std::thread([this, own = std::move(loop)]() mutable {
      while (!may_begin_) std::this_thread::yield();
      const auto done = own->run();
      own.reset();
      failure_ = done ? "" : done.error().message();
      ended_ = true;
    });
  }
  bool ends() {
    return wait_until(5s, [this] { return ended_.load(); });
  }
  /// All threads that there are read or are busy.
  bool stand(unsigned reading, unsigned busy) {
    return wait_until(5s, [&] { return kernel_.reading() == reading && kernel_.busy() == busy; });
  }

  Kernel kernel_;
  std::atomic<bool> may_begin_ = true;
  std::atomic<bool> ended_ = false;
  std::string failure_;

 private:
  Session make_session() {
    fuse_lowlevel_ops ops{};
    ops.init = on_init;
    ops.getattr = on_getattr;
    return value_or_throw(Session::create(
        ops, kernel_, value_or_throw(open_file("/dev/null", O_RDWR)), SessionOptions{}));
  }
  Session session_;
  std::weak_ptr<RequestLoop> loop_;
  std::thread running_;
};

/// While it lives there is address space for `more` bytes and nothing that was freed before: no
/// stack of a thread, no buffer.
class LittleRoom {
 public:
  explicit LittleRoom(std::size_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    held_.reserve(1000);
    stacks_.reserve(1000);
    limit_to(0);
    try {
      while (stacks_.size() < 1000)
        stacks_.emplace_back([this] {
          while (!over_) std::this_thread::sleep_for(5ms);
        });
    } catch (const std::exception&) {
    }
    constexpr std::size_t kLarge = 1U << 20;
    while (held_.size() < 1000) {
      std::unique_ptr<char[]> one(new (std::nothrow) char[kLarge]);
      if (!one) break;
      held_.push_back(std::move(one));
    }
    limit_to(more);
  }
  LittleRoom(const LittleRoom&) = delete;
  LittleRoom& operator=(const LittleRoom&) = delete;
  ~LittleRoom() {
    ::setrlimit(RLIMIT_AS, &before_);
    over_ = true;
    for (auto& stack : stacks_) stack.join();
  }

 private:
  void limit_to(std::size_t more) const {
    const auto status = value_or_throw(read_file("/proc/self/status"));
    const rlimit little{std::stoull(status.substr(status.find("VmSize:") + 7)) * 1024 + more,
                        before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
  }
  rlimit before_{};
  std::atomic<bool> over_ = false;
  std::vector<std::thread> stacks_;
  std::vector<std::unique_ptr<char[]>> held_;
};

TEST_F(RequestLoops, have_one_more_thread_than_are_busy_up_to_the_limit) {
  run(4);
  EXPECT_TRUE(stand(2, 0)) << "one read INIT, and started another";
  for (unsigned busy = 1; busy <= 4; ++busy) {
    kernel_.ask_attributes();
    EXPECT_TRUE(stand(busy < 4 ? 1 : 0, busy)) << busy;
  }
  kernel_.ask_attributes();
  kernel_.release();
  EXPECT_TRUE(stand(4, 0));
  EXPECT_EQ(kernel_.answered(), 5U);
  kernel_.end();
  EXPECT_TRUE(ends());
  EXPECT_EQ(failure_, "");
}

TEST_F(RequestLoops, end_only_when_what_was_read_is_done) {
  run(4);
  EXPECT_TRUE(stand(2, 0));
  kernel_.ask_attributes();
  EXPECT_TRUE(stand(1, 1));
  kernel_.end();
  EXPECT_TRUE(stand(0, 1));
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(ended_);
  kernel_.release();
  EXPECT_TRUE(ends());
  EXPECT_EQ(failure_, "");
}

TEST_F(RequestLoops, fail_at_once_where_a_read_fails_though_others_wait_and_work) {
  run(4);
  EXPECT_TRUE(stand(2, 0));
  kernel_.ask_attributes();
  EXPECT_TRUE(stand(1, 1));
  kernel_.ask_attributes();
  EXPECT_TRUE(stand(1, 2));
  kernel_.fail_one_read(EIO);
  EXPECT_TRUE(ends());
  EXPECT_THAT(failure_, HasSubstr("cannot go on: Input/output error"));
}

TEST_F(RequestLoops, read_again_after_what_is_no_failure) {
  run(2);
  EXPECT_TRUE(stand(2, 0));
  for (const int error : {EINTR, ENOENT, EAGAIN, EINTR}) kernel_.fail_one_read(error);
  kernel_.ask_attributes();
  kernel_.release();
  EXPECT_TRUE(wait_until(5s, [this] { return kernel_.answered() == 1; }));
  kernel_.end();
  EXPECT_TRUE(ends());
  EXPECT_EQ(failure_, "");
}

TEST_F(RequestLoops, start_no_thread_for_what_nobody_waits_for) {
  run(8);
  EXPECT_TRUE(stand(2, 0));
  for (int i = 0; i < 100; ++i) {
    const fuse_forget_in one{1};
    kernel_.ask(FUSE_FORGET, {reinterpret_cast<const char*>(&one), sizeof(one)});
  }
  kernel_.ask_attributes();
  EXPECT_TRUE(stand(1, 1));
  EXPECT_FALSE(wait_until(100ms, [this] { return kernel_.reading() > 1; }));
}

TEST_F(RequestLoops, go_on_with_the_threads_that_there_is_memory_for) {
  if (kSanitized) HEDDLE_SKIP("a sanitizer takes terabytes of address space");
  run(8);
  EXPECT_TRUE(stand(2, 0));
  kernel_.ask_attributes();
  EXPECT_TRUE(stand(1, 1));
  {
    const LittleRoom room(0);
    for (int i = 0; i < 2; ++i) kernel_.ask_attributes();
    EXPECT_TRUE(stand(0, 2));
    kernel_.release();
    EXPECT_TRUE(stand(2, 0));
    EXPECT_EQ(kernel_.answered(), 3U);
  }
  kernel_.end();
  EXPECT_TRUE(ends());
  EXPECT_EQ(failure_, "");
}

// With room for a request and none for a stack.
TEST_F(RequestLoops, need_no_thread_of_their_own) {
  if (kSanitized) HEDDLE_SKIP("a sanitizer takes terabytes of address space");
  may_begin_ = false;
  run(8);
  {
    const LittleRoom room(2U << 20);
    may_begin_ = true;
    kernel_.ask_attributes();
    EXPECT_TRUE(stand(0, 1));
    kernel_.release();
    EXPECT_TRUE(stand(1, 0));
  }
  kernel_.end();
  EXPECT_TRUE(ends());
  EXPECT_EQ(failure_, "");
  EXPECT_EQ(kernel_.answered(), 1U);
}

}  // namespace
}  // namespace heddle::test
