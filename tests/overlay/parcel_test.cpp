// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/parcel.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "fuseovl/overlay/load.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

const std::string kOddName = "odd \t\n \xff \xc3\xa4";

class ParcelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text_file(dir_ / "src/one", "1");
    write_text_file(dir_ / "src/" + kOddName, "22");
    write_text_file(dir_ / "src/sub/three", "333");
    MapMaker maker;
    maker.add_folder("v", dir_ / "src");
    maker.write(dir_ / "map");
  }
  OverlayContent load() const {
    LoadOptions options;
    options.map_path = dir_ / "map";
    options.mount_point = "/mnt";
    std::vector<Drift> drifts;
    return value_or_throw(load_overlay(options, drifts));
  }
  /// What another process would have.
  static std::vector<int> inherited(const Parcel& parcel) {
    std::vector<int> out;
    for (const int fd : parcel.fds) out.push_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    return out;
  }

  TestDir dir_;
};

TEST_F(ParcelTest, content_comes_out_as_it_went_in) {
  auto content = load();
  content.generated = {std::string("\0binary\xff", 8)};
  std::vector<RetiredFiles::File> old;
  old.push_back({77, ".heddle/index", value_or_throw(make_origin("old", "index")), 0, 5});
  content.retired = RetiredFiles(std::move(old));
  content.files.refuse_again(1, EIO);
  const auto parcel = pack(content);
  EXPECT_EQ(parcel.fds.size(), 5U);  // three files, the map, the old index
  const auto again = value_or_throw(unpack(parcel.bytes, inherited(parcel)));
  EXPECT_EQ(pack(again).bytes, parcel.bytes);
  EXPECT_EQ(again.index, content.index);
  EXPECT_EQ(again.generated, content.generated);
  const auto ino = again.tree.lookup(Tree::kRoot, kOddName);
  EXPECT_EQ(ino, content.tree.lookup(Tree::kRoot, kOddName));
  EXPECT_EQ(again.files.origin(again.tree.object(ino)).stamp.size, 2U);
  EXPECT_EQ(again.files.refusal(1), static_cast<std::uint32_t>(EIO));
  EXPECT_EQ(again.files.pinned(), 3U);
  ASSERT_EQ(again.retired.find(77), std::optional<ObjectId>(0));
  EXPECT_EQ(again.retired.since(0), 5);
  EXPECT_EQ(again.retired.find(78), std::nullopt);
  struct stat st {};
  EXPECT_EQ(::fstat(again.map_file.get(), &st), 0);
  EXPECT_EQ(st.st_size, content.map_status.st_size);
}

TEST_F(ParcelTest, what_was_given_up_is_not_packed) {
  auto content = load();
  std::vector<RetiredFiles::File> old;
  for (const InodeNumber ino : {70, 71})
    old.push_back({ino, "x", value_or_throw(make_origin("old", "x")), 0, 0});
  content.retired = RetiredFiles(std::move(old));
  (void)content.retired.files().take(0);
  EXPECT_EQ(content.retired.kept(), 1U);
  const auto parcel = pack(content);
  const auto again = value_or_throw(unpack(parcel.bytes, inherited(parcel)));
  EXPECT_EQ(again.retired.size(), 1U);
  EXPECT_EQ(again.retired.inode(0), 71U);
}

TEST_F(ParcelTest, one_with_patches_is_of_the_version_that_knows_them) {
  const auto version = [](const Parcel& parcel) {
    return nlohmann::json::from_cbor(parcel.bytes).at("version");
  };
  auto content = load();
  EXPECT_EQ(version(pack(content)), 1);
  std::vector<RetiredFiles::File> old;
  old.push_back({77, "/app", value_or_throw(make_origin("old", "app")), 0, 5});
  old[0].origin.patches = {{1, "ld", "LD"}};
  content.retired = RetiredFiles(std::move(old));
  const auto parcel = pack(content);
  EXPECT_EQ(version(parcel), 2);
  const auto again = value_or_throw(unpack(parcel.bytes, inherited(parcel)));
  EXPECT_EQ(again.retired.files().origin(0).patches, content.retired.files().origin(0).patches);
}

TEST_F(ParcelTest, what_another_version_packed_or_nobody_is_refused) {
  const auto content = load();
  auto json = nlohmann::json::from_cbor(pack(content).bytes);
  for (const int version : {0, 3}) {
    json["version"] = version;
    std::string bytes;
    nlohmann::json::to_cbor(json, bytes);
    EXPECT_EQ(unpack(bytes, {}).error().code(), ENOTSUP);
  }
  for (const std::string& nonsense : {std::string(), std::string("x"), std::string(100, '\xff')})
    EXPECT_EQ(unpack(nonsense, {}).error().code(), ENOTSUP);
  // Descriptors that it speaks of and nobody gave.
  EXPECT_EQ(unpack(pack(content).bytes, {}).error().code(), ENOTSUP);
}

}  // namespace
}  // namespace heddle::test
