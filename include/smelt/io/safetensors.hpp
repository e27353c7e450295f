// SPDX-License-Identifier: Apache-2.0
//
// safetensors files: named tensors in one file, read in place and written as a stream.
//
//   8 bytes    length of the header, little-endian
//   header     JSON (safetensors_header.hpp)
//   data       the tensors one behind the other, by descending alignment of their types, then by
//              name as bytes; row-major, little-endian
//
// The bytes are those that the Python package writes for the same tensors. A tensor is stored
// once: who shares one under two names says so in the metadata, which is his to design.
//
// Needs nlohmann-json, see safetensors_header.hpp. Source: the format's own description.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "smelt/io/checksum.hpp"
#include "smelt/io/dtype.hpp"
#include "smelt/io/file.hpp"
#include "smelt/io/message.hpp"
#include "smelt/io/natural_order.hpp"
#include "smelt/io/safetensors_header.hpp"
#include "smelt/io/tensor_info.hpp"

namespace smelt {

/// Reads the header of a whole file that lies in memory; nothing of the data is touched.
/// @throws smelt::error naming `file`, the tensor, what was expected and what was found.
inline safetensors_header parse_safetensors(std::span<const std::byte> bytes,
                                            const std::string& file) {
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes)
    throw detail::io_error(file, "at least 8 bytes, the length of the header",
                           detail::byte_text(bytes.size()), "fetch or write the file again");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  // A file of another kind nearly always ends here: its first bytes make an absurd length.
  if (header_bytes > static_cast<std::uint64_t>(safetensors_header_limit_bytes))
    throw detail::io_error(
        file, "a header of at most " + std::to_string(safetensors_header_limit_bytes) + " bytes",
        std::to_string(header_bytes), "name a safetensors file");
  const std::span<const std::byte> rest = bytes.subspan(sizeof header_bytes);
  if (header_bytes > rest.size())
    throw detail::io_error(file, "a header of " + detail::byte_text(header_bytes),
                           detail::byte_text(rest.size()),
                           "the file is truncated: fetch or write it again");
  const auto length = static_cast<std::size_t>(header_bytes);
  return parse_safetensors_header({reinterpret_cast<const char*>(rest.data()), length},
                                  static_cast<std::int64_t>(rest.size() - length), file);
}

/// A safetensors file, read in place: opening it reads the header alone, and of the data only what
/// is asked for ever leaves the disk. Spans live as long as this object, moved or not.
class safetensors_file {
 public:
  /// @throws smelt::error naming the file and the tensor that does not fit, as parse_safetensors.
  explicit safetensors_file(const std::filesystem::path& path)
      : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
    // The tensors fill the data: the last one ends where the file does.
    std::int64_t data_bytes = 0;
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
      index_.emplace(header_.tensors[i].name, i);
      data_bytes = header_.tensors[i].end_bytes;
    }
    data_ = file_.bytes().last(static_cast<std::size_t>(data_bytes));
  }

  const std::filesystem::path& path() const { return file_.path(); }
  /// All tensors in the order of the file.
  const std::vector<tensor_info>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Of the whole file, header and all.
  smelt::checksum checksum() const { return checksum_of(file_.bytes()); }

  /// All names, experts.2 before experts.10.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : index_) names.push_back(entry.first);
    return names;
  }

  bool contains(std::string_view name) const { return index_.contains(name); }

  /// Type, shape and place of a tensor.
  /// @throws smelt::error naming file and tensor where there is none of this name, as everything
  ///         below.
  const tensor_info& tensor(std::string_view name) const {
    const auto found = index_.find(name);
    if (found == index_.end())
      throw detail::io_error(place(name), "it in the file",
                             std::to_string(index_.size()) + " others",
                             "check the name and that the file belongs to this model");
    return header_.tensors[found->second];
  }

  /// The bytes of a tensor, in place; at no particular alignment in files of old writers.
  std::span<const std::byte> bytes(std::string_view name) const {
    const tensor_info& info = tensor(name);
    return data_.subspan(static_cast<std::size_t>(info.begin_bytes),
                         static_cast<std::size_t>(info.bytes()));
  }

  /// Demands type and shape of a tensor, as the model has them.
  void expect(std::string_view name, dtype type, std::span<const std::int64_t> shape) const {
    const tensor_info& info = tensor(name);
    if (info.type != type || !std::ranges::equal(info.shape, shape))
      throw detail::io_error(place(name), tensor_text(type, shape),
                             tensor_text(info.type, info.shape),
                             "check that the file belongs to this model");
  }

  /// The elements of a tensor in place, whatever its shape.
  /// @throws smelt::error too where the data do not lie at a multiple of the type's size, as in
  ///         files of old writers that did not pad their headers; `copy` reads those.
  template <tensor_element T>
  std::span<const T> view(std::string_view name) const {
    expect(name, dtype_of<T>, tensor(name).shape);
    const std::span<const std::byte> data = bytes(name);
    if (data.empty()) return {};
    if (reinterpret_cast<std::uintptr_t>(data.data()) % alignof(T) != 0)
      throw detail::io_error(place(name), "data at a multiple of " + detail::byte_text(alignof(T)),
                             "them beside one", "copy the tensor, or write the file again");
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }

  /// Copies the elements of a tensor that must have this shape, wherever they lie.
  template <tensor_element T>
  void copy(std::string_view name, std::span<const std::int64_t> shape,
            std::span<T> destination) const {
    expect(name, dtype_of<T>, shape);
    const std::span<const std::byte> data = bytes(name);
    if (destination.size_bytes() != data.size())
      throw detail::io_error(place(name), "room for " + detail::byte_text(data.size()),
                             detail::byte_text(destination.size_bytes()),
                             "hand over memory of the tensor's size");
    if (!data.empty()) std::memcpy(destination.data(), data.data(), data.size());
  }

 private:
  std::string place(std::string_view name) const {
    return file_.path().string() + ": tensor " + detail::quoted_name(name);
  }

  mapped_file file_;
  safetensors_header header_;
  std::span<const std::byte> data_;
  std::map<std::string, std::size_t, natural_order> index_;  // where in the header
};

/// What was written: the size of the file and the checksum of all its bytes.
struct written_file {
  std::int64_t size_bytes = 0;
  smelt::checksum checksum{};
};

/// Writes a file tensor by tensor, for tensors that are not all in memory at once (on a device, or
/// gathered from other ranks). The header comes first, so names, types and shapes are told
/// beforehand and the data handed over in order().
class safetensors_writer {
 public:
  /// @param tensors   name, type and shape of each, in any order; the offsets are set here.
  /// @param metadata  texts, of any meaning; none: no __metadata__ in the file.
  /// @throws smelt::error where a name is doubled, reserved or not UTF-8, where a size overflows,
  ///         where the header grows too long, or as atomic_file.
  safetensors_writer(const std::filesystem::path& path, std::vector<tensor_info> tensors,
                     std::map<std::string, std::string> metadata = {})
      : header_{std::move(tensors), std::move(metadata)}, file_(path) {
    place_tensors();
    const std::string text = safetensors_header_text(header_, path.string());
    const std::uint64_t length = text.size();
    // No reader would take it.
    if (text.size() > static_cast<std::size_t>(safetensors_header_limit_bytes))
      throw detail::io_error(
          path.string(),
          "a header of at most " + std::to_string(safetensors_header_limit_bytes) + " bytes",
          std::to_string(length), "spread the tensors over several files");
    put(std::as_bytes(std::span(&length, 1)));
    put(std::as_bytes(std::span(text)));
  }

  /// In which order the data are to be handed over: by descending alignment of the type, so that
  /// every tensor is aligned without gaps, then by name.
  const std::vector<tensor_info>& order() const { return header_.tensors; }

  /// Data of the tensor whose turn it is, in pieces of any size.
  /// @throws smelt::error where another tensor's turn it is, or where the piece is too long.
  void write(std::string_view name, std::span<const std::byte> bytes) {
    const std::vector<tensor_info>& tensors = header_.tensors;
    // On to the named one, past those that are complete.
    while (next_ < tensors.size() && tensors[next_].name != name &&
           tensors[next_].end_bytes == written_bytes_)
      ++next_;
    if (next_ == tensors.size() || tensors[next_].name != name)
      throw detail::io_error(place(name),
                             next_ == tensors.size()
                                 ? "no more data"
                                 : "those of " + detail::quoted_name(tensors[next_].name) + " next",
                             detail::byte_text(bytes.size()),
                             "hand over each tensor once, in order()");
    const std::int64_t left_bytes = tensors[next_].end_bytes - written_bytes_;
    if (static_cast<std::int64_t>(bytes.size()) > left_bytes)
      throw detail::io_error(place(name), "at most " + detail::byte_text(left_bytes) + " more",
                             detail::byte_text(bytes.size()), "check shape and data");
    put(bytes);
    written_bytes_ += static_cast<std::int64_t>(bytes.size());
  }

  /// Puts the file in its place.
  /// @throws smelt::error where data are missing, or as atomic_file.
  written_file finish() {
    for (const tensor_info& tensor : header_.tensors)
      if (tensor.end_bytes > written_bytes_)
        throw detail::io_error(
            place(tensor.name), detail::byte_text(tensor.bytes()),
            detail::byte_text(std::max<std::int64_t>(0, written_bytes_ - tensor.begin_bytes)),
            "hand over each tensor once, in order()");
    file_.finish();
    return {file_.size_bytes(), sum_};
  }

 private:
  std::string place(std::string_view name) const {
    return file_.path().string() + ": tensor " + detail::quoted_name(name);
  }

  void put(std::span<const std::byte> bytes) {
    file_.write(bytes);
    sum_.update(bytes);
  }

  // Sorts the tensors and sets their offsets.
  void place_tensors() {
    std::vector<tensor_info>& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const tensor_info& a, const tensor_info& b) {
      return a.type != b.type ? a.type > b.type : a.name < b.name;
    });
    // The metadata's name counts as taken.
    std::set<std::string_view> names{detail::metadata_name};
    std::int64_t end = 0;
    for (tensor_info& tensor : tensors) {
      if (!names.insert(tensor.name).second)
        throw detail::io_error(place(tensor.name), "every name once, and none reserved",
                               "it a second time",
                               "name a shared tensor once, and its aliases in the metadata");
      const std::optional<std::int64_t> bytes = tensor_bytes(tensor.type, tensor.shape);
      if (!bytes || *bytes > std::numeric_limits<std::int64_t>::max() - end)
        throw detail::io_error(place(tensor.name), "a size below 2^63 bytes",
                               tensor_text(tensor.type, tensor.shape), "check the shape");
      tensor.begin_bytes = end;
      tensor.end_bytes = end + *bytes;
      end = tensor.end_bytes;
    }
  }

  safetensors_header header_;
  atomic_file file_;
  smelt::checksum sum_;
  std::int64_t written_bytes_ = 0;  // of the data
  std::size_t next_ = 0;            // the tensor whose turn it is
};

/// A tensor in the host's memory, to be written. The memory stays its owner's.
struct tensor_view {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
};

/// The view of typed elements; F16 and 8-bit floats are viewed as bytes, by hand.
template <tensor_element T>
tensor_view view_tensor(std::string name, std::vector<std::int64_t> shape,
                        std::span<const T> elements) {
  return {std::move(name), dtype_of<T>, std::move(shape), std::as_bytes(elements)};
}

/// Writes tensors that are in memory, in any order given, one after another; no copy of them is
/// made. What stood at the path is there until the new file is whole. The same tensors and metadata
/// give the same bytes.
/// @return  what a checkpoint notes of the file, to find later that it is still the one written.
/// @throws smelt::error as safetensors_writer, and where a view is not as long as its shape says.
inline written_file write_safetensors(const std::filesystem::path& path,
                                      std::span<const tensor_view> tensors,
                                      std::map<std::string, std::string> metadata = {}) {
  std::vector<tensor_info> infos;
  std::map<std::string_view, std::span<const std::byte>> data;
  for (const tensor_view& tensor : tensors) {
    // An impossible shape is for the writer to refuse.
    const std::optional<std::int64_t> bytes = tensor_bytes(tensor.type, tensor.shape);
    if (bytes && static_cast<std::size_t>(*bytes) != tensor.bytes.size())
      throw detail::io_error(
          path.string() + ": tensor " + detail::quoted_name(tensor.name),
          detail::byte_text(*bytes) + " for " + tensor_text(tensor.type, tensor.shape),
          detail::byte_text(tensor.bytes.size()), "check shape and view");
    infos.push_back({tensor.name, tensor.type, tensor.shape});
    data[tensor.name] = tensor.bytes;
  }
  safetensors_writer writer(path, std::move(infos), std::move(metadata));
  for (const tensor_info& tensor : writer.order()) writer.write(tensor.name, data.at(tensor.name));
  return writer.finish();
}

}  // namespace smelt
