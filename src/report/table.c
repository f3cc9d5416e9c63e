/* Text tables with aligned columns. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mgwfbp/report.h>

#include "base/locale.h"
#include "base/utf8.h"

enum { CELL_MAX = 160, COLUMNS_MAX = 16 };

struct mgw_table {
    size_t columns;
    bool left[COLUMNS_MAX];
    size_t count; /* cells, the heads first */
    size_t capacity;
    char **cells;
    size_t width; /* of the terminal; 0: unlimited */
    bool bold;    /* bold heads */
    bool failed;
};

static void add_cell(mgw_table *table, const char *content)
{
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 64;
        char **cells = realloc(table->cells, capacity * sizeof *cells);
        if (!cells) {
            table->failed = true;
            return;
        }
        table->cells = cells;
        table->capacity = capacity;
    }
    char *cell = strdup(content);
    if (!cell) {
        table->failed = true;
        return;
    }
    mgw_utf8_clean(cell); /* names must not contain newlines */
    table->cells[table->count++] = cell;
}

mgw_table *mgw_table_create(const char *heads)
{
    mgw_table *table = calloc(1, sizeof *table);
    char *copy = strdup(heads);
    if (table && copy) {
        char *rest = copy;
        for (char *head = strsep(&rest, "|"); head && table->columns < COLUMNS_MAX;
             head = strsep(&rest, "|")) {
            table->left[table->columns++] = *head == '<';
            add_cell(table, head + (*head == '<'));
        }
    } else {
        free(table);
        table = NULL;
    }
    free(copy);
    return table;
}

void mgw_table_destroy(mgw_table *table)
{
    if (!table)
        return;
    for (size_t i = 0; i < table->count; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table);
}

void mgw_table_cell(mgw_table *table, const char *format, ...)
{
    if (!table || table->failed)
        return;
    char content[CELL_MAX];
    locale_t before = uselocale(mgw_c_locale());
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(content, sizeof content, format, arguments);
    va_end(arguments);
    uselocale(before);
    add_cell(table, content);
}

/* Number of characters in the first `bytes` bytes, without UTF-8 continuation bytes. */
static size_t width_within(const char *cell, size_t bytes)
{
    size_t width = 0;
    for (size_t i = 0; i < bytes; i++)
        width += ((unsigned char)cell[i] & 0xc0) != 0x80;
    return width;
}

static size_t width_of(const char *cell)
{
    return width_within(cell, strlen(cell));
}

/* ---- Narrow tables ---- */

/* The columns that are printed side by side: the first, and [from, to). */
typedef struct block {
    size_t from;
    size_t to;
} block;

static size_t total_of(const size_t *widths, size_t from, size_t to)
{
    size_t total = widths[0];
    for (size_t c = from; c < to; c++)
        total += 2 + widths[c];
    return total;
}

static size_t longest_word(const char *words)
{
    size_t longest = 0;
    while (*words) {
        size_t length = strcspn(words, " ");
        size_t width = width_within(words, length);
        longest = width > longest ? width : longest;
        words += length + (words[length] == ' ');
    }
    return longest;
}

/* Breaks heads between words, the one with the largest excess first. */
static void break_heads(const mgw_table *table, const size_t *least, size_t width, size_t *widths)
{
    while (total_of(widths, 1, table->columns) > width) {
        size_t most = 0;
        size_t at = 0;
        for (size_t c = 0; c < table->columns; c++)
            if (widths[c] - least[c] > most) {
                most = widths[c] - least[c];
                at = c;
            }
        if (most == 0)
            return;
        widths[at]--;
    }
}

enum { TEXT_MIN = 12, NAME_MIN = 18 }; /* minimum width of cut text; in the first column */

static void cut_texts(const mgw_table *table, size_t width, size_t *widths)
{
    while (total_of(widths, 1, table->columns) > width) {
        size_t at = table->columns;
        for (size_t c = 0; c < table->columns; c++)
            if (table->left[c] && widths[c] > (c ? TEXT_MIN : NAME_MIN) &&
                (at == table->columns || at == 0 || widths[c] > widths[at]))
                at = c;
        if (at == table->columns)
            return;
        widths[at]--;
    }
}

/* The widths of columns: that of the widest cell, or less if the table would be too wide. */
static void find_widths(const mgw_table *table, size_t *widths, size_t *least)
{
    for (size_t i = 0; i < table->count; i++) {
        size_t c = i % table->columns;
        size_t width = width_of(table->cells[i]);
        size_t needs = i < table->columns ? longest_word(table->cells[i]) : width;
        widths[c] = width > widths[c] ? width : widths[c];
        least[c] = needs > least[c] ? needs : least[c];
    }
    if (!table->width || total_of(widths, 1, table->columns) <= table->width)
        return;
    break_heads(table, least, table->width, widths);
    cut_texts(table, table->width, widths);
}

/* The number of bytes of the next line of a head, in whole words; *next is the start of the line
 * after it. */
static size_t head_line(const char *head, size_t width, size_t *next)
{
    size_t used = 0;
    for (size_t at = 0; head[at];) {
        size_t end = at + strcspn(head + at, " ");
        if (used && width_within(head, end) > width)
            break;
        used = end;
        at = end + (head[end] == ' ');
    }
    *next = used + (head[used] == ' ');
    return used;
}

static size_t head_lines(const char *head, size_t width)
{
    size_t lines = 0;
    while (*head) {
        size_t next = 0;
        (void)head_line(head, width, &next);
        head += next;
        lines++;
    }
    return lines;
}

/* A cell of a row, or of a line of the heads, which are aligned at the bottom. */
static void find_cell(const mgw_table *table, size_t row, size_t c, size_t below, size_t width,
                      char out[CELL_MAX + 4])
{
    size_t index = row * table->columns + c;
    const char *cell = index < table->count ? table->cells[index] : "";
    size_t bytes = strlen(cell);
    if (row == 0) {
        size_t lines = head_lines(cell, width);
        size_t next = 0;
        for (size_t skip = lines > below ? lines - below : 0; lines > below && skip > 0; skip--) {
            (void)head_line(cell, width, &next);
            cell += next;
        }
        if (lines < below) /* it is in a later line */
            cell = "";
        bytes = head_line(cell, width, &next);
    }
    bool cut = row > 0 && width_of(cell) > width;
    if (cut) {
        bytes = 0;
        for (size_t seen = 0; cell[bytes]; bytes++) {
            seen += ((unsigned char)cell[bytes] & 0xc0) != 0x80;
            if (seen == width)
                break;
        }
    }
    snprintf(out, CELL_MAX + 4, "%.*s%s", (int)bytes, cell, cut ? "\u2026" : "");
}

static void write_line(const mgw_table *table, size_t row, size_t below, block b,
                       const size_t *widths, mgw_text *text)
{
    int gap = 0; /* spaces before the next cell; none at the end of a line */
    for (size_t i = b.from - 1; i < b.to; i++) {
        size_t c = i < b.from ? 0 : i;
        char cell[CELL_MAX + 4];
        find_cell(table, row, c, below, widths[c], cell);
        int padding = (int)(widths[c] - width_of(cell));
        if (!table->left[c])
            gap += padding;
        if (*cell) {
            mgw_text_printf(text, "%*s%s", gap, "", cell);
            gap = 0;
        }
        gap += 2 + (table->left[c] ? padding : 0);
    }
    mgw_text_append(text, "\n", 1);
}

static void write_block(const mgw_table *table, block b, const size_t *widths, mgw_text *text)
{
    size_t rows = (table->count + table->columns - 1) / table->columns;
    size_t deepest = 1;
    for (size_t i = b.from - 1; i < b.to; i++) {
        size_t c = i < b.from ? 0 : i;
        size_t lines = head_lines(table->cells[c], widths[c]);
        deepest = lines > deepest ? lines : deepest;
    }
    if (table->bold)
        mgw_text_printf(text, "\033[1m");
    for (size_t below = deepest; below > 0; below--)
        write_line(table, 0, below, b, widths, text);
    if (table->bold)
        mgw_text_printf(text, "\033[0m");
    for (size_t row = 1; row < rows; row++)
        write_line(table, row, 0, b, widths, text);
}

void mgw_table_fit(mgw_table *table, size_t width, bool bold)
{
    if (!table)
        return;
    table->width = width;
    table->bold = bold;
}

void mgw_table_write(const mgw_table *table, mgw_text *text)
{
    size_t *widths = table && !table->failed ? calloc(2 * table->columns, sizeof *widths) : NULL;
    if (!widths) {
        text->failed = true;
        return;
    }
    find_widths(table, widths, widths + table->columns);
    size_t from = 1;
    do { /* columns that do not fit are printed below, with the first column repeated */
        size_t to = from < table->columns ? from + 1 : from;
        while (to < table->columns &&
               (!table->width || total_of(widths, from, to + 1) <= table->width))
            to++;
        if (from > 1)
            mgw_text_append(text, "\n", 1);
        write_block(table, (block){from, to}, widths, text);
        from = to;
    } while (from < table->columns);
    free(widths);
}
