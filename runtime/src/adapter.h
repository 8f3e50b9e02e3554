/* An adapter as the runtime reads it: a .cuvla file, or a blob in the image's ADAPTERS section.
 *
 * cuvilc/package/cuvla.py writes it; tests/runtime/test_image.py ties both sides. Little-endian:
 * header, entries, strings, then tensors, each on a 64-byte boundary. Offsets are bytes from the
 * start of the header.
 */
#ifndef CUVIL_ADAPTER_H
#define CUVIL_ADAPTER_H

#include <stdint.h>

#define CUVIL_ADAPTER_MAGIC 0x5044414c49565543ull /* "CUVILADP" */
#define CUVIL_ADAPTER_VERSION 1u
#define CUVIL_PANEL 32u /* outputs in a panel of a factor and of a packed weight */

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t entry_count;
    uint64_t bytes;     /* of all of it */
    uint8_t base[32];   /* fingerprint of the package that it is for: cuvil_lora.fingerprint */
    uint8_t source[32]; /* SHA-256 of the adapter's own tensors */
    uint32_t name;      /* offset among the strings */
    uint32_t string_bytes;
    uint32_t rank;      /* the largest */
    uint32_t checksum;  /* Adler-32 of all of it, this field being 0 */
    uint64_t reserved[3];
} cuvil_adapter_header; /* 128 bytes */

enum cuvil_adapter_kind {
    CUVIL_ADAPTER_WHOLE = 0,   /* a: the whole tensor as the package holds it */
    CUVIL_ADAPTER_FACTORS = 1  /* a: float [rank, rows]; b: float [panels, rank, CUVIL_PANEL], with
                                  the scale; gain: float [panels, CUVIL_PANEL], or 0 for ones; bias:
                                  the same, of a model for batches alone, or 0 for none; rank: 0 if
                                  there is nothing but a bias */
};

/* One change. Entries are sorted by site, those of one site by first_panel, and do not overlap. */
typedef struct {
    uint32_t site; /* number in ADAPTABLE */
    uint32_t kind;
    uint32_t rank;
    uint32_t first_panel, panels;
    uint32_t module; /* string: for messages */
    uint64_t a, b, gain, bias;
} cuvil_adapter_entry; /* 56 bytes */

#endif
