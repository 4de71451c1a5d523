# SPDX-License-Identifier: MIT
# Not tried: `spack repo create` a repository, and copy this directory into its packages.
from spack.package import *


class Heddle(MesonPackage):
    """Starts programs with many shared libraries without a search; records which files a program uses; runs
    the MPI programs of containers on the MPI of the host."""

    homepage = "https://heddle.invalid"
    url = "file:///path/to/heddle-0.1.0.tar.gz"
    license("MIT")

    version("main", git="file:///path/to/heddle", branch="main")

    variant("server", default=False, description="compat-server and its client")
    variant("registry", default=False, description="The client of OCI registries")
    variant("lief", default=False, description="Read symbols with LIEF")

    depends_on("cxx", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("scdoc", type="build")
    depends_on("fmt@9:12")
    depends_on("tl-expected")
    depends_on("nlohmann-json@3.11:")
    depends_on("cli11@2.1:")
    # fs-mount, fs-record and fs-hook are static, whatever the rest is.
    depends_on("xxhash@0.8:")
    depends_on("lmdb@0.9.24:")
    depends_on("zstd@1.4: libs=static,shared")
    depends_on("libfuse@3.14: default_library=both")
    depends_on("libseccomp@2.5:")
    depends_on("openssl@1.1:")
    depends_on("grpc@1.30:", when="+server")
    depends_on("protobuf@3.12:", when="+server")
    depends_on("curl@7.85:", when="+registry")
    depends_on("lief", when="+lief")

    conflicts("%gcc@:11", msg="C++20 as of g++ 12")
    conflicts("%clang@:13", msg="C++20 as of clang 14")
    requires("platform=linux", "target=x86_64:")

    def meson_args(self):
        def feature(option, variant):
            return "-D{0}={1}".format(option, "enabled" if variant in self.spec else "disabled")

        return [
            "-Dtests=false",
            feature("compat_server", "+server"),
            feature("registry", "+registry"),
            feature("lief", "+lief"),
        ]
