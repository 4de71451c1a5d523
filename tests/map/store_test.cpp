// SPDX-License-Identifier: MIT
#include "resolver/store/store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "base/temp_dir.hpp"

namespace heddle::store {
namespace {

class Store : public ::testing::Test {
 protected:
  TempDir dir_ = value_or_throw(TempDir::create("heddle-store"));
  std::string path_ = dir_.path() + "/db";
  Env make(EnvOptions options = {}) { return value_or_throw(Env::open(path_, options)); }
  static void put(Env& env, std::string_view key, std::string_view value) {
    auto txn = value_or_throw(env.begin_write());
    auto dbi = value_or_throw(txn.create("d"));
    value_or_throw(txn.put(dbi, key, value));
    value_or_throw(txn.commit());
  }
  static std::optional<std::string> get(const Env& env, std::string_view key) {
    auto txn = value_or_throw(env.begin_read());
    auto dbi = value_or_throw(txn.open("d"));
    if (!dbi) return std::nullopt;
    auto value = value_or_throw(txn.get(*dbi, key));
    if (!value) return std::nullopt;
    return std::string(*value);
  }
};

TEST_F(Store, what_was_committed_is_there) {
  Env env = make();
  put(env, "key", std::string_view("v\0w", 3));
  EXPECT_EQ(get(env, "key"), std::string("v\0w", 3));
  EXPECT_EQ(get(env, "other"), std::nullopt);
  EXPECT_EQ(get(env, ""), std::nullopt);
  EXPECT_EQ(get(env, std::string(kMaxKey + 1, 'k')), std::nullopt);
}

TEST_F(Store, a_write_without_commit_never_happened) {
  Env env = make();
  {
    auto txn = value_or_throw(env.begin_write());
    auto dbi = value_or_throw(txn.create("d"));
    value_or_throw(txn.put(dbi, "key", "value"));
  }
  EXPECT_EQ(get(env, "key"), std::nullopt);
}

TEST_F(Store, cursor_walks_in_key_order_and_seeks) {
  Env env = make();
  for (const char* key : {"b", "a", "c", "aa"}) put(env, key, key);
  auto txn = value_or_throw(env.begin_read());
  auto dbi = value_or_throw(txn.open("d"));
  ASSERT_TRUE(dbi);
  EXPECT_EQ(value_or_throw(txn.count(*dbi)), 4u);
  auto cursor = value_or_throw(txn.cursor(*dbi));
  std::string keys;
  for (auto e = value_or_throw(cursor.first()); e; e = value_or_throw(cursor.next()))
    keys += std::string(e->first) + " ";
  EXPECT_EQ(keys, "a aa b c ");
  EXPECT_EQ(value_or_throw(cursor.seek("ab"))->first, "b");
  EXPECT_EQ(value_or_throw(cursor.seek("d")), std::nullopt);
}

TEST_F(Store, a_handle_kept_by_a_reader_serves_later_transactions) {
  Env env = make();
  put(env, "key", "value");
  auto first = value_or_throw(env.begin_read());
  const auto dbi = value_or_throw(first.open("d"));
  ASSERT_TRUE(dbi && first.keep_handles());
  auto second = value_or_throw(env.begin_read());
  EXPECT_EQ(value_or_throw(second.get(*dbi, "key")), "value");
}

TEST_F(Store, a_full_map_says_so_and_grows) {
  Env env = make({.locking = Locking::none, .map_size = 1 << 16});
  const std::string big(1 << 18, 'x');
  const auto write = [&]() -> Result<void> {
    auto txn = env.begin_write();
    if (!txn) return fail(txn.error());
    auto dbi = txn->create("d");
    if (!dbi) return fail(dbi.error());
    if (auto put = txn->put(*dbi, "key", big); !put) return put;
    return txn->commit();
  };
  auto result = write();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), kMapFull);
  value_or_throw(env.grow(1 << 20));
  EXPECT_GE(env.map_size(), 1u << 20);
  EXPECT_TRUE(write());
  EXPECT_FALSE(std::filesystem::exists(path_ + "-lock"));
}

TEST_F(Store, a_key_too_long_or_out_of_order_is_an_error) {
  Env env = make();
  auto txn = value_or_throw(env.begin_write());
  auto dbi = value_or_throw(txn.create("d"));
  EXPECT_EQ(txn.put(dbi, std::string(kMaxKey + 1, 'k'), "v").error().code(), EINVAL);
  value_or_throw(txn.append(dbi, "b", "v"));
  EXPECT_EQ(txn.append(dbi, "a", "v").error().code(), EEXIST);
  EXPECT_TRUE(value_or_throw(txn.erase(dbi, "b")));
  EXPECT_FALSE(value_or_throw(txn.erase(dbi, "b")));
}

TEST_F(Store, a_file_that_is_no_database_is_refused_and_named) {
  auto fd = value_or_throw(open_file(path_, O_CREAT | O_WRONLY));
  value_or_throw(write_all(fd.get(), std::string(8192, 'x'), path_));
  auto env = Env::open(path_, {});
  ASSERT_FALSE(env);
  EXPECT_EQ(env.error().code(), EBADMSG);
  EXPECT_NE(env.error().message().find(path_), std::string::npos);
}

TEST_F(Store, a_missing_file_cannot_be_read) {
  auto env = Env::open(path_, {.access = Access::read_only});
  ASSERT_FALSE(env);
  EXPECT_EQ(env.error().code(), ENOENT);
}

TEST_F(Store, many_processes_write_and_lose_nothing) {
  constexpr int kProcesses = 8, kWrites = 25;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      try {
        Env env = make({.durability = Durability::unsynced});
        for (int i = 0; i < kWrites; ++i)
          put(env, std::to_string(p) + "-" + std::to_string(i), "v");
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (pid_t pid : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  Env env = make();
  auto txn = value_or_throw(env.begin_read());
  EXPECT_EQ(value_or_throw(txn.count(*value_or_throw(txn.open("d")))), 1u * kProcesses * kWrites);
}

TEST_F(Store, readers_in_many_threads_share_one_env) {
  Env env = make();
  put(env, "key", "value");
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) good += get(env, "key") == "value";
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 800);
}

}  // namespace
}  // namespace heddle::store
