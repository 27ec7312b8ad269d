// Documents that are packed into one sequence of tokens.
#pragma once

#include <cstdint>

/** A document: rows of a prefix, which others may share, then its own rows. The first to have a prefix answers for its
 * rows' results. */
struct Document {
    int64_t prefix_start, prefix, own_start, own, is_first;

    int64_t length() const { return prefix + own; }
    int64_t row(int64_t index) const { return index < prefix ? prefix_start + index : own_start + index - prefix; }
    /** The first row whose result is this document's. */
    int64_t first_query() const { return is_first ? 0 : prefix; }
};
