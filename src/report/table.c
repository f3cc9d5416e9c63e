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
    mgw_utf8_clean(cell); /* a name must not break the line */
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

/* Characters, not bytes: UTF-8's continuation bytes do not count. */
static size_t width_of(const char *cell)
{
    size_t width = 0;
    for (; *cell; cell++)
        width += ((unsigned char)*cell & 0xc0) != 0x80;
    return width;
}

static void write_row(const mgw_table *table, size_t row, const size_t *widths, mgw_text *text)
{
    int gap = 0; /* spaces owed before the next cell: none are left at the end of a line */
    for (size_t c = 0; c < table->columns; c++) {
        size_t index = row * table->columns + c;
        const char *cell = index < table->count ? table->cells[index] : "";
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

void mgw_table_write(const mgw_table *table, mgw_text *text)
{
    size_t *widths = table && !table->failed ? calloc(table->columns, sizeof *widths) : NULL;
    if (!widths) {
        text->failed = true;
        return;
    }
    for (size_t i = 0; i < table->count; i++) {
        size_t width = width_of(table->cells[i]);
        size_t *widest = &widths[i % table->columns];
        *widest = width > *widest ? width : *widest;
    }
    size_t rows = (table->count + table->columns - 1) / table->columns;
    for (size_t row = 0; row < rows; row++)
        write_row(table, row, widths, text);
    free(widths);
}
