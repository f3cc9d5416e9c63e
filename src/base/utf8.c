/* Sanitizes text from outside for a terminal or a picture. */
#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

size_t mgw_utf8_length(const char *string)
{
    const unsigned char *s = (const unsigned char *)string;
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < length; i++) /* a terminator stops it, too */
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] >= 0xa0;
    bool beyond = s[0] == 0xf4 && s[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

/* ASCII control characters, and U+0080 to U+009F: terminals may interpret both as commands. */
static bool is_control(const unsigned char *s)
{
    return s[0] < 0x20 || s[0] == 0x7f || (s[0] == 0xc2 && s[1] < 0xa0);
}

void mgw_utf8_clean(char *string)
{
    while (*string) {
        size_t length = mgw_utf8_length(string);
        if (length == 0 || is_control((const unsigned char *)string)) {
            length = length ? length : 1;
            memset(string, '?', length);
        }
        string += length;
    }
}
