// SPDX-License-Identifier: Apache-2.0
// fmt's functions, compiled once. Debian ships them as a shared library only, and muster and musterd are one
// file each. Header-only, every source file compiled them again: with the sanitizers that was 40 to 70 % of
// its compile time (g++ 12, -O1: tcp_mesh.cc 11.6 s, now 3.3 s; agent.cc 18.1 s, now 10.3 s). Weak, so that a
// program that links an fmt of its own beside libmuster_rendezvous.a has no symbol twice.
#include <fmt/format.h>

#undef FMT_FUNC
#define FMT_FUNC __attribute__((weak))
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, basic_string_view<char>, basic_format_args<buffer_context<char>>,
                         locale_ref);
template auto dragonbox::to_decimal(float) -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) -> dragonbox::decimal_fp<double>;

}  // namespace detail
FMT_END_NAMESPACE
