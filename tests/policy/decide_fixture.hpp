// SPDX-License-Identifier: MIT
#pragma once

#include "tests/policy/image_world.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

inline constexpr const char* kImageLib = "/usr/lib/";
inline constexpr const char* kInit = "extern int MPI_Init(void); MPI_Init();";

/// An image that the case makes; the installed fs-resolve decides on it.
class ImageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("fs-resolve").empty())
      HEDDLE_SKIP("fs-resolve is not installed in $HEDDLE_STAGE");
    if (::geteuid() != 0) HEDDLE_SKIP("only root may chroot into an image");
  }
  void host_mpi(const std::string& version, const std::string& more = "",
                const std::vector<std::string>& flags = {}) {
    world_.mpich(world_.prefix() + "/lib/libmpi.so.12", version, more, flags);
  }
  /// A program in the image, linked with the image's MPI `theirs`, and MPICH 4.0.2 on the host.
  void solver(const std::string& theirs, const std::string& calls = kInit,
              const std::vector<std::string>& flags = {}) {
    world_.program("/app/solver", calls, theirs, flags);
    host_mpi("4.0.2");
    world_.run_ldconfig();
  }
  nlohmann::json swap(const std::string& program, std::vector<std::string> more = {}) const {
    auto decision = world_.decide(program, std::move(more));
    EXPECT_EQ(decision["outcome"], "swap") << decision.dump(2);
    return decision;
  }
  /// The image's own ld.so, with everything mounted, lists the predicted files.
  void expect_as_real(const std::string& program, const nlohmann::json& decision) {
    world_.place(decision);
    EXPECT_EQ(world_.loads(decision), world_.real_loads(program)) << decision.dump(2);
  }

  ImageWorld world_;
};

class Decide : public ImageTest {
 protected:
  /// MPICH 3.0 in the image under Debian's soname, MPICH 4.0.2 on the host under upstream's.
  void usual() {
    theirs_ = world_.mpich(world_.in(kImageLib) + "libmpich.so.12", "3.0");
    solver(theirs_);
  }
  std::string refusal(const std::string& program, std::vector<std::string> more = {}) {
    std::filesystem::remove(world_.map());
    const auto result = world_.build(program, std::move(more));
    EXPECT_EQ(result.status, 1) << result.out << result.err;
    EXPECT_FALSE(std::filesystem::exists(world_.map()));
    const auto value = nlohmann::json::parse(result.out, nullptr, false);
    if (!value.is_object()) return "no JSON: " + result.err;
    EXPECT_EQ(value["outcome"], "incompatible");
    return value["reason"];
  }

  std::string theirs_;
};

}  // namespace heddle::test
