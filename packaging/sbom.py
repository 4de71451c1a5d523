#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sbom.py NAME VERSION DIRECTORY: prints the SPDX 2.3 document of the archive's content: its files, and
the libraries that are linked into its programs, with their versions as dpkg knows them here.
sbom.py --licences DIRECTORY: copies the copyright file of each of these libraries, which their licences ask to be
passed on with programs that contain them, to DIRECTORY/PACKAGE."""
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys

GCC = (subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True).stdout.split(".")[0].strip()
       if shutil.which("g++") else "12")
# Debian package of the build: name, licence, home page.
LINKED = {
    "libfmt-dev": ("fmt", "MIT", "https://fmt.dev"),
    "libexpected-dev": ("expected", "CC0-1.0", "https://github.com/TartanLlama/expected"),
    "libxxhash-dev": ("xxHash", "BSD-2-Clause", "https://xxhash.com"),
    "liblmdb-dev": ("LMDB", "OLDAP-2.8", "https://www.symas.com/lmdb"),
    "libzstd-dev": ("zstd", "BSD-3-Clause OR GPL-2.0-only", "https://facebook.github.io/zstd"),
    "libfuse3-dev": ("libfuse", "LGPL-2.1-only", "https://github.com/libfuse/libfuse"),
    "libseccomp-dev": ("libseccomp", "LGPL-2.1-only", "https://github.com/seccomp/libseccomp"),
    "nlohmann-json3-dev": ("nlohmann-json", "MIT", "https://json.nlohmann.me"),
    "libcli11-dev": ("CLI11", "BSD-3-Clause", "https://github.com/CLIUtils/CLI11"),
    "libssl-dev": ("OpenSSL", "Apache-2.0", "https://www.openssl.org"),
    "zlib1g-dev": ("zlib", "Zlib", "https://zlib.net"),
    "libc6-dev": ("glibc", "LGPL-2.1-or-later", "https://www.gnu.org/software/libc"),
    f"libstdc++-{GCC}-dev": ("libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org"),
}


def digests(path):
    with open(path, "rb") as file:
        content = file.read()
    return [{"algorithm": name.upper(), "checksumValue": hashlib.new(name, content).hexdigest()}
            for name in ("sha1", "sha256")]


def version_of(package):
    found = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True)
    return found.stdout if found.returncode == 0 else None


def copy_licences(directory):
    os.makedirs(directory, exist_ok=True)
    for package in LINKED:
        if version_of(package):
            shutil.copyfile(f"/usr/share/doc/{package}/copyright", os.path.join(directory, package))


def main():
    if sys.argv[1] == "--licences":
        copy_licences(sys.argv[2])
        return
    name, version, directory = sys.argv[1:]
    files = []
    for folder, _, names in os.walk(directory):
        for file in names:
            path = os.path.join(folder, file)
            if not os.path.islink(path):
                files.append(os.path.relpath(path, directory))
    files = [{"SPDXID": f"SPDXRef-File-{number}", "fileName": "./" + path,
              "checksums": digests(os.path.join(directory, path)),
              "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION"}
             for number, path in enumerate(sorted(files))]
    code = "".join(sorted(file["checksums"][0]["checksumValue"] for file in files))
    heddle = {
        "SPDXID": "SPDXRef-heddle", "name": "heddle", "versionInfo": version, "downloadLocation": "NOASSERTION",
        "filesAnalyzed": True, "licenseConcluded": "MIT", "licenseDeclared": "MIT",
        "licenseInfoFromFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION",
        "packageFileName": name + ".tar.zst",
        "packageVerificationCode": {"packageVerificationCodeValue": hashlib.sha1(code.encode()).hexdigest()}}
    packages, relations = [heddle], []
    for package, (title, licence, page) in sorted(LINKED.items()):
        ref = "SPDXRef-" + package.replace("+", "p")
        found = version_of(package)
        packages.append({
            "SPDXID": ref, "name": title, "downloadLocation": "NOASSERTION", "homepage": page,
            "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence,
            "copyrightText": "NOASSERTION",
            **({"versionInfo": found,
                "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                  "referenceLocator": f"pkg:deb/debian/{package}@{found}".replace("+", "%2B")}]}
               if found else {})})
        relations.append((ref, "STATIC_LINK", "SPDXRef-heddle"))
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-heddle")] + relations + [
        ("SPDXRef-heddle", "CONTAINS", file["SPDXID"]) for file in files]
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    json.dump({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
        "documentNamespace": f"https://heddle.invalid/spdx/{name}-{heddle['packageVerificationCode']['packageVerificationCodeValue']}",
        "creationInfo": {"created": date.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: heddle-packaging-sbom.py"]},
        "packages": packages, "files": files,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in relations]}, sys.stdout, indent=1)
    print()


main()
