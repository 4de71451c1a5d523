#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_sbom.py DOCUMENT TREE: whether the SPDX 2.3 document has all that its schema demands, and names each file
of the archive's content with its digests."""
import hashlib
import json
import os
import re
import sys

document_path, tree = sys.argv[1:]
with open(document_path, encoding="utf-8") as file:
    document = json.load(file)


def demand(condition, what):
    if not condition:
        sys.exit(f"check_sbom: {what}")


# https://github.com/spdx/spdx-spec/blob/support/2.3/schemas/spdx-schema.json: what is required, and patterns of clause 6.
for key in ("spdxVersion", "dataLicense", "SPDXID", "name", "creationInfo", "documentNamespace"):
    demand(key in document, f"no {key}")
demand(document["spdxVersion"] == "SPDX-2.3" and document["dataLicense"] == "CC0-1.0", "another version or licence")
demand(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", document["creationInfo"]["created"]), "created")
demand(document["creationInfo"]["creators"], "no creators")
ids = [document["SPDXID"]] + [part["SPDXID"] for part in document["packages"] + document["files"]]
for identifier in ids:
    demand(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identifier), f"the identifier {identifier}")
demand(len(set(ids)) == len(ids), "an identifier is there twice")
for package in document["packages"]:
    demand(package["name"] and package["downloadLocation"] and package.get("versionInfo"), f"{package['SPDXID']} lacks a name or version")
for relation in document["relationships"]:
    demand({relation["spdxElementId"], relation["relatedSpdxElement"]} <= set(ids), f"{relation} names what is not there")
for package in document["packages"]:
    for reference in package.get("externalRefs", []):
        library = re.fullmatch(r"pkg:deb/debian/([^@]+)@.*", reference["referenceLocator"]).group(1).replace("%2B", "+")
        demand(os.path.getsize(os.path.join(tree, "share/doc/heddle/licences", library)), f"no licence of {library}")
there = {os.path.join(folder, name) for folder, _, names in os.walk(tree) for name in names
         if not os.path.islink(os.path.join(folder, name))}
demand({os.path.normpath(os.path.join(tree, part["fileName"])) for part in document["files"]} == there, "its files are not the tree's")
for part in document["files"]:
    with open(os.path.join(tree, part["fileName"]), "rb") as file:
        content = file.read()
    for checksum in part["checksums"]:
        demand(hashlib.new(checksum["algorithm"].lower(), content).hexdigest() == checksum["checksumValue"], part["fileName"])
