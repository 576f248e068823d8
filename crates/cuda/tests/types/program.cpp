// Applies one operation to elements of one type: the device code, compiled for the host.
//
// The macro WEFT_TYPE names the type.
//
// usage: program OPERATION TASK NUMBER < elements > results
//
//   packs N     N arrays of the same length, combined in packs of 16 bytes
//   elements N  the same, element by element
//   scale F     all elements times element F
//   finish N    all elements as the results of N ranks
//   load 0      all elements as accumulators
//   store 0     all accumulators as elements

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "types.h"
#include "half.h"
#include "float8.h"
#include "operations.h"
#include "pack.h"

using namespace weft;
using Bytes = std::vector<u8>;

static std::string operation, task;
static unsigned long number;

template <class T>
static T at(const Bytes& bytes, size_t index) {
    T value;
    memcpy(&value, &bytes[index * sizeof(T)], sizeof(T));
    return value;
}

template <class T>
static void push(Bytes& bytes, T value) {
    bytes.resize(bytes.size() + sizeof(T));
    memcpy(&bytes[bytes.size() - sizeof(T)], &value, sizeof(T));
}

template <class Element, class Operation>
static Bytes results(const Bytes& in) {
    using One = Reduction<Element, Operation>;
    using Many = Pack<Element, Operation>;
    using Storage = typename One::Storage;
    using Accumulator = typename One::Accumulator;
    Bytes out;
    if (task == "packs") {
        size_t packs = in.size() / number / sizeof(Words);
        std::vector<Words> inputs(number);
        for (size_t index = 0; index < packs; ++index) {
            for (size_t input = 0; input < number; ++input) {
                inputs[input] = at<Words>(in, input * packs + index);
            }
            Words all = Many::all(inputs.data(), number);
            if (number == 2) {
                Words two = Many::two(inputs[0], inputs[1]);
                if (memcmp(&two, &all, sizeof(Words)) != 0) {
                    fprintf(stderr, "pack %zu: `two` and `all` differ\n", index);
                    exit(1);
                }
            }
            push(out, all);
        }
    } else if (task == "elements") {
        size_t elements = in.size() / number / sizeof(Storage);
        for (size_t index = 0; index < elements; ++index) {
            Accumulator sum = One::load(at<Storage>(in, index));
            for (size_t input = 1; input < number; ++input) {
                sum = One::combine(sum, One::load(at<Storage>(in, input * elements + index)));
            }
            push(out, One::store(sum));
        }
    } else if (task == "scale") {
        for (size_t index = 0; index < in.size() / sizeof(Words); ++index) {
            push(out, Many::scale(at<Words>(in, index), at<Storage>(in, number)));
        }
    } else if (task == "finish") {
        for (size_t index = 0; index < in.size() / sizeof(Words); ++index) {
            push(out, Many::finish(at<Words>(in, index), u32(number)));
        }
    } else if (task == "load") {
        for (size_t index = 0; index < in.size() / sizeof(Storage); ++index) {
            push(out, One::load(at<Storage>(in, index)));
        }
    } else if (task == "store") {
        for (size_t index = 0; index < in.size() / sizeof(Accumulator); ++index) {
            push(out, One::store(at<Accumulator>(in, index)));
        }
    } else {
        fprintf(stderr, "unknown task %s\n", task.c_str());
        exit(2);
    }
    return out;
}

template <class Element>
static Bytes run(const Bytes& in) {
#define WEFT_TRY(NAME)                           \
    if constexpr (NAME::is_for(Element::KIND)) { \
        if (operation == #NAME) {                \
            return results<Element, NAME>(in);   \
        }                                        \
    }
    WEFT_TRY(Sum)
    WEFT_TRY(Product)
    WEFT_TRY(Minimum)
    WEFT_TRY(Maximum)
    WEFT_TRY(Average)
    WEFT_TRY(PremultipliedSum)
    WEFT_TRY(LogicalAnd)
    WEFT_TRY(LogicalOr)
    WEFT_TRY(LogicalXor)
    WEFT_TRY(BitAnd)
    WEFT_TRY(BitOr)
    WEFT_TRY(BitXor)
    fprintf(stderr, "%s is not defined for this type\n", operation.c_str());
    exit(3);
}

int main(int count, char** arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: %s OPERATION TASK NUMBER\n", arguments[0]);
        return 2;
    }
    operation = arguments[1];
    task = arguments[2];
    number = strtoul(arguments[3], nullptr, 10);
    Bytes in;
    u8 buffer[1 << 16];
    for (size_t read; (read = fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
        in.insert(in.end(), buffer, buffer + read);
    }
    Bytes out = run<WEFT_TYPE>(in);
    return fwrite(out.data(), 1, out.size(), stdout) == out.size() ? 0 : 1;
}
