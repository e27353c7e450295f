// SPDX-License-Identifier: Apache-2.0
//
// text_corpus: text from any files and folders, a token per byte (vocabulary<256>).
//
//   file    one document
//   folder  a document per file below it, in the order of their names; links to folders are not
//           followed
//   source  what the user named: losses are reported per source
//
// A file with a NUL byte is binary and passed over, a file equal to one already read too: what is
// held out must not also stand in the training text. Both are counted, so that a program can say
// so. What the user named and cannot be read is an error.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "smelt/error.hpp"

namespace smelt {

namespace detail {
/// FNV-1a, 64 bit: the same on every machine, which std::hash is not.
inline std::uint64_t text_hash(const void* bytes, std::size_t count) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto* byte = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ byte[i]) * 0x100000001b3u;
  return hash;
}
inline std::uint64_t text_hash(std::string_view text) {
  return text_hash(text.data(), text.size());
}
}  // namespace detail

/// What a source is made of.
struct text_request {
  std::string name;                          // as losses are reported
  std::vector<std::filesystem::path> paths;  // files and folders
  std::vector<std::string> endings{};        // e.g. ".py"; only these files; none: every file
  std::int64_t most_bytes = 0;               // stop after so many; 0: all there is
};

/// Bytes [begin, end) of the corpus that belong to one file.
struct text_document {
  std::string name;  // below the path that the user named
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What came of a request. Documents [first_document, last_document) are its own.
struct text_source {
  std::string name;
  std::int64_t first_document = 0;
  std::int64_t last_document = 0;
  std::int64_t bytes = 0;
  std::int64_t binary_files = 0;      // passed over: NUL bytes
  std::int64_t compressed_files = 0;  // passed over: gzip; some of the binary ones
  std::int64_t repeated_files = 0;    // passed over: equal to a file already read
  std::int64_t unreadable_files = 0;  // passed over: inside a folder, not to be opened

  std::int64_t documents() const { return last_document - first_document; }
};

/// Grows source by source. Everything is held in memory: a corpus is megabytes, not terabytes.
class text_corpus {
 public:
  /// Reads a source. Throws where a named path does not exist or cannot be read, or where nothing
  /// is left that is text; the corpus is then as it was before.
  const text_source& add(const text_request& request) {
    const std::size_t bytes_before = bytes_.size();
    const std::size_t documents_before = documents_.size();
    try {
      read(request);
    } catch (...) {
      for (std::size_t i = documents_before; i < documents_.size(); ++i)
        seen_.erase(content_hash(documents_[i]));
      bytes_.resize(bytes_before);
      documents_.resize(documents_before);
      throw;
    }
    return sources_.back();
  }

  const std::vector<text_source>& sources() const { return sources_; }
  const std::vector<text_document>& documents() const { return documents_; }
  /// All documents behind one another, without anything in between.
  const std::uint8_t* bytes() const { return bytes_.data(); }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  struct candidate {
    std::filesystem::path path;
    std::string name;
    bool named;  // by the user, not found in a folder
  };
  struct close_file {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  enum class outcome { text, empty, binary, compressed };

  // By name alone; what is in the file decides later whether it is text.
  static bool has_ending(const std::filesystem::path& path, const text_request& request) {
    return request.endings.empty() || std::find(request.endings.begin(), request.endings.end(),
                                                path.extension().string()) != request.endings.end();
  }

  // The files of a request, in the order of their names whatever the file system's own order is.
  static std::vector<candidate> find_files(const text_request& request, text_source& source) {
    namespace fs = std::filesystem;
    std::vector<candidate> found;
    for (const fs::path& path : request.paths) {
      std::error_code code;
      const fs::file_status status = fs::status(path, code);
      if (status.type() == fs::file_type::not_found)
        throw error(path.string() + ": no such file or folder; name one that exists");
      if (!fs::exists(status))
        throw error(path.string() + ": " + code.message() + "; name a file or folder to read");
      if (!fs::is_directory(status)) {
        if (!fs::is_regular_file(status))
          throw error(path.string() + ": neither a file nor a folder; name one of these");
        found.push_back({path, path.filename().string(), true});
        continue;
      }
      if (fs::directory_iterator(path, code); code)
        throw error(path.string() + ": cannot open the folder: " + code.message() +
                    "; check its permissions");
      fs::recursive_directory_iterator walk(path, fs::directory_options::skip_permission_denied,
                                            code);
      std::vector<candidate> below;
      for (; walk != fs::recursive_directory_iterator(); walk.increment(code)) {
        if (code) break;
        std::error_code ignored;
        if (!walk->is_regular_file(ignored) || !has_ending(walk->path(), request)) continue;
        below.push_back({walk->path(), walk->path().lexically_relative(path).string(), false});
      }
      // What ends the walk early (a disk fault) is counted: text may be missing.
      if (code) ++source.unreadable_files;
      std::sort(below.begin(), below.end(),
                [](const candidate& a, const candidate& b) { return a.name < b.name; });
      found.insert(found.end(), below.begin(), below.end());
    }
    return found;
  }

  // Appends the file's bytes; takes them back unless they are text.
  outcome append(const candidate& file) {
    const std::unique_ptr<std::FILE, close_file> input(std::fopen(file.path.c_str(), "rb"));
    if (!input)
      throw error(file.path.string() + ": cannot open: " + std::strerror(errno) +
                  "; check its permissions");
    const std::size_t before = bytes_.size();
    std::array<std::uint8_t, 1 << 16> block;
    bool binary = false;
    while (const std::size_t count = std::fread(block.data(), 1, block.size(), input.get())) {
      binary = std::memchr(block.data(), 0, count) != nullptr;
      bytes_.insert(bytes_.end(), block.begin(),
                    block.begin() + static_cast<std::ptrdiff_t>(count));
      if (binary) break;
    }
    const int code = errno;
    if (std::ferror(input.get())) {
      bytes_.resize(before);
      throw error(file.path.string() + ": cannot read: " + std::strerror(code) +
                  "; leave it out or check the disk");
    }
    const std::size_t count = bytes_.size() - before;
    const bool gzip = count > 2 && bytes_[before] == 0x1f && bytes_[before + 1] == 0x8b;
    if (binary || gzip) bytes_.resize(before);
    if (gzip) return outcome::compressed;
    if (binary) return outcome::binary;
    return count == 0 ? outcome::empty : outcome::text;
  }

  // 64 bits of it: among a million files, equal hashes of unequal texts have odds of 1 in 10^7.
  std::uint64_t content_hash(const text_document& document) const {
    return detail::text_hash(bytes_.data() + document.begin,
                             static_cast<std::size_t>(document.end - document.begin));
  }

  void read(const text_request& request) {
    text_source source;
    source.name = request.name;
    source.first_document = static_cast<std::int64_t>(documents_.size());
    std::vector<candidate> files = find_files(request, source);
    // With a limit, a fair sample of the whole folder and not its beginning of the alphabet.
    if (request.most_bytes > 0)
      std::sort(files.begin(), files.end(), [](const candidate& a, const candidate& b) {
        const std::uint64_t left = detail::text_hash(a.name);
        const std::uint64_t right = detail::text_hash(b.name);
        return left != right ? left < right : a.path < b.path;
      });
    // Whole documents: the last one may pass the limit.
    for (const candidate& file : files) {
      if (request.most_bytes > 0 && source.bytes >= request.most_bytes) break;
      text_document document{file.name, size(), 0};
      outcome found = outcome::empty;
      // One file without permission somewhere below a folder is no reason to stop.
      try {
        found = append(file);
      } catch (const error&) {
        if (file.named) throw;
        ++source.unreadable_files;
        continue;
      }
      refuse_named(file, found);
      source.binary_files += found == outcome::binary || found == outcome::compressed;
      source.compressed_files += found == outcome::compressed;
      if (found != outcome::text) continue;
      document.end = size();
      if (!seen_.insert(content_hash(document)).second) {
        ++source.repeated_files;
        bytes_.resize(static_cast<std::size_t>(document.begin));  // take it back
        continue;
      }
      source.bytes += document.end - document.begin;
      documents_.push_back(std::move(document));
    }
    source.last_document = static_cast<std::int64_t>(documents_.size());
    if (source.documents() == 0)
      throw error((request.paths.empty() ? request.name : request.paths.front().string()) +
                  ": no text in it (" + std::to_string(files.size()) +
                  " files: " + std::to_string(source.binary_files) + " binary, " +
                  std::to_string(source.repeated_files) + " already read, " +
                  std::to_string(source.unreadable_files) +
                  " unreadable, the others empty); name a file or folder with plain text");
    sources_.push_back(std::move(source));
  }

  // Inside a folder these are passed over; named by the user they are a mistake.
  static void refuse_named(const candidate& file, outcome found) {
    if (!file.named) return;
    if (found == outcome::empty)
      throw error(file.path.string() + ": the file is empty; name one with text");
    if (found == outcome::compressed)
      throw error(file.path.string() + ": compressed with gzip; unpack it with gunzip first");
    if (found == outcome::binary)
      throw error(file.path.string() + ": a NUL byte in it, so not text; name a text file");
  }

  std::vector<std::uint8_t> bytes_;
  std::vector<text_document> documents_;
  std::vector<text_source> sources_;
  std::unordered_set<std::uint64_t> seen_;  // contents already read
};

}  // namespace smelt
