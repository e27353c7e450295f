// SPDX-License-Identifier: Apache-2.0
//
// gzip by zlib.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "gunzip.hpp"
#include "smelt/io/message.hpp"

namespace smelt_tokens {

bool can_gunzip() {
  return true;
}

std::string gunzip(std::string_view bytes, const std::string& place) {
  const auto damaged = [&](const char* what) {
    return smelt::detail::io_error(place, "a whole gzip file", what, "fetch it again");
  };
  ::z_stream stream{};
  // 15 bits of window, and 16 for the header of gzip.
  if (::inflateInit2(&stream, 15 + 16) != Z_OK)
    throw smelt::detail::io_error(place, "memory to unpack it", "none", "free some");
  const std::unique_ptr<::z_stream, int (*)(::z_stream*)> guard(&stream, &::inflateEnd);
  std::string text;
  std::array<char, std::size_t{1} << 16U> block;
  std::size_t taken = 0;  // handed to zlib
  for (int code = Z_OK;;) {
    if (stream.avail_in == 0) {
      // Its counts are 32 bits wide.
      const std::size_t count = std::min(bytes.size() - taken, std::size_t{1} << 30U);
      if (count == 0) {
        if (code == Z_STREAM_END) return text;
        throw damaged("a truncated one");
      }
      stream.next_in = reinterpret_cast<::Bytef*>(const_cast<char*>(bytes.data() + taken));
      stream.avail_in = static_cast<::uInt>(count);
      taken += count;
    }
    // Another member; anything else behind the last one is ignored, as gunzip does.
    if (code == Z_STREAM_END) {
      const std::size_t left = stream.avail_in;
      const std::string_view next(reinterpret_cast<const char*>(stream.next_in), left);
      if (!is_gzip(next)) return text;
      ::inflateReset(&stream);
    }
    stream.next_out = reinterpret_cast<::Bytef*>(block.data());
    stream.avail_out = static_cast<::uInt>(block.size());
    code = ::inflate(&stream, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      throw damaged(stream.msg != nullptr ? stream.msg : "a damaged one");
    text.append(block.data(), block.size() - stream.avail_out);
  }
}

}  // namespace smelt_tokens
