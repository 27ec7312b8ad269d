#pragma once

#include <cstddef>
#include <cstdlib>

/** Memory of a thread, kept for its next call. */
class Scratch {
public:
    ~Scratch() { free(data); }
    void reset(size_t bytes) {
        used = 0;
        if (bytes <= room) return;
        free(data);
        data = (char *) aligned_alloc(64, room = bytes);
        if (!data) abort();
    }
    template <typename T> T * take(size_t count) {
        T * here = (T *) (data + used);
        used += (count * sizeof(T) + 63) / 64 * 64;
        return here;
    }

private:
    char * data = nullptr;
    size_t room = 0, used = 0;
};
