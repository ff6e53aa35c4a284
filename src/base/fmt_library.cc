// libfmt itself. Debian ships it as a shared library only, and the header-only form costs every file that formats about 8
// seconds of compile time (memory/arena.cc: 10.6 s against 2.7 s), so its implementation is compiled here, once.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// The list of fmt's own src/format.cc, for char.
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template locale_ref::locale_ref(const std::locale&);
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<buffer_context<char>>, locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
