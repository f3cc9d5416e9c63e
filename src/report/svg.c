/* The frame of a picture, and its text. */
#include "report/svg.h"

#include <string.h>

#include "base/utf8.h"

void mgw_svg_escape(mgw_text *text, const char *string)
{
    while (*string) {
        unsigned char c = (unsigned char)*string;
        size_t length = mgw_utf8_length(string);
        bool forbidden = length == 3 && (!memcmp(string, "\xef\xbf\xbe", 3) || /* by XML */
                                         !memcmp(string, "\xef\xbf\xbf", 3));
        if (c == '&')
            mgw_text_append(text, "&amp;", 5);
        else if (c == '<')
            mgw_text_append(text, "&lt;", 4);
        else if (c == '>')
            mgw_text_append(text, "&gt;", 4);
        else if (c == '"')
            mgw_text_append(text, "&quot;", 6);
        else if (c < 0x20 || c == 0x7f || length == 0 || forbidden)
            mgw_text_append(text, "?", 1);
        else
            mgw_text_append(text, string, length);
        string += length ? length : 1;
    }
}

void mgw_svg_open(mgw_text *text, int width, int height, const char *title)
{
    mgw_text_printf(text,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                    "viewBox=\"0 0 %d %d\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" "
                    "font-size=\"12\" fill=\"#222\" role=\"img\">\n<title>",
                    width, height, width, height);
    mgw_svg_escape(text, title);
    mgw_text_printf(text, "</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
}

void mgw_svg_close(mgw_text *text)
{
    mgw_text_printf(text, "</svg>\n");
}

void mgw_svg_label(mgw_text *text, double x, double y, const char *anchor, const char *style,
                   const char *label)
{
    mgw_text_printf(text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor,
                    style);
    mgw_svg_escape(text, label);
    mgw_text_printf(text, "</text>\n");
}
