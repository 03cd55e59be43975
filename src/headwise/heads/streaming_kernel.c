/* What each query's weights add up to, head after head, in one pass that no matrix of weights leaves.

   A strip of queries meets all keys it sees: their scores fill a buffer, each row of which is then turned into
   exp(score - top) and summed up while it is in the cache. Keys are packed into panels first, so that the
   products of a few queries with a panel stay in registers. Vectors are GNU C's, as wide as the machine has them.

   Letters as in streaming.py: B batch, H query heads, G key/value heads, T queries, S keys, K width of a key. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, QUERIES = 8, VECTORS = 3 }; /* QUERIES x VECTORS sums, VECTORS keys and one query: registers */
#elif defined(__AVX__)
enum { LANES = 8, QUERIES = 4, VECTORS = 3 };
#else
enum { LANES = 4, QUERIES = 4, VECTORS = 4 };
#endif
enum { PANEL = LANES * VECTORS, STRETCH = 64 * LANES };

typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    int64_t heads, groups, queries, keys, width; /* H, G, T, S, K */
    int64_t q_batch, q_head, q_row, k_batch, k_group, k_row; /* strides */
    int64_t corner, step; /* query i stands at key corner + step i */
    int64_t near;         /* how far from there single scores are kept */
    int64_t strip;        /* queries of a strip, a multiple of 8 */
    int64_t placed;       /* whether queries have a place among the keys at all */
    int64_t size;         /* B H T */
    float scale;
    float floor;  /* below what score - top is raised to it */
    float lowest; /* the top of a query that sees nothing */
    const float *q, *k;
    const int64_t *start, *stop;                /* (B, T), the keys that a query sees */
    const uint8_t *counted;                     /* (B, T) */
    const int64_t *first_key;                   /* (B,) */
    const int64_t *set_apart, *set_apart_from;  /* keys, and where those of a sequence begin, (B + 1,) */
    const float *is_punctuation;                /* (B, S), 1 and 0 */
    const uint8_t *is_special;                  /* (B, S), none but those set apart */
    const float *key_norms;                     /* (B, H, S) or none */
    const float *sink;                          /* (H,) or none */
    float *top, *total, *moment, *distance, *punctuation, *special, *norm, *special_norm; /* (B, H, T) */
    float *first, *content, *apart;             /* (B, H, T) */
    float *around;                              /* (2 near + 1, B, H, T) */
    float *received;                            /* (B, H, S), all 0, or none */
} Sweep;

int64_t panel_keys(void) { return PANEL; }

static inline Floats choose(Ints mask, Floats a, Floats b) {
    return (Floats)((mask & (Ints)a) | (~mask & (Ints)b));
}

static inline Floats larger(Floats a, Floats b) { return choose(a > b, a, b); } /* b if a is NaN */

static inline Floats all(float x) { return x - (Floats){0}; }

static inline Floats load(const float *from) { return *(const Floats *)from; }

/* Load what is left of a row; the rest is filled. */
static inline Floats load_part(const float *from, int64_t count, float rest) {
    if (count >= LANES) return load(from);
    float part[LANES];
    for (int n = 0; n < LANES; n++) part[n] = n < count ? from[n] : rest;
    return load(part);
}

static inline void store_part(float *to, Floats v, int64_t count) {
    if (count >= LANES)
        *(Floats *)to = v;
    else
        for (int64_t n = 0; n < count; n++) to[n] = v[n];
}

static inline double summed(Floats v) {
    double found = 0;
    for (int n = 0; n < LANES; n++) found += v[n];
    return found;
}

/* exp of -87 < x <= 0 to about a unit in the last place: 2^n times a polynomial on |r| <= ln(2)/2. */
static inline Floats exponential(Floats x) {
    const Floats magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to whole numbers */
    const Floats n = (x * all(1.44269504f) + magic) - magic;
    const Floats r = (x - n * all(0.693145752f)) - n * all(1.42860677e-6f);
    Floats p = all(1.0f / 5040);
    p = p * r + all(1.0f / 720);
    p = p * r + all(1.0f / 120);
    p = p * r + all(1.0f / 24);
    p = p * r + all(1.0f / 6);
    p = p * r + all(0.5f);
    p = p * r + all(1.0f);
    p = p * r + all(1.0f);
    const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    return p * (Floats)power;
}

/* Turn keys (S, K) into panels (K, PANEL), zeros after the last. */
static void pack(const Sweep *s, const float *k, float *panels) {
    for (int64_t start = 0; start < s->keys; start += PANEL, panels += PANEL * s->width) {
        const int64_t count = s->keys - start < PANEL ? s->keys - start : PANEL;
        if (count < PANEL) memset(panels, 0, (size_t)(PANEL * s->width) * sizeof(float));
        for (int64_t i = 0; i < s->width; i++)
            for (int64_t n = 0; n < count; n++) panels[i * PANEL + n] = k[(start + n) * s->k_row + i];
    }
}

/* The products of a few queries, packed as (K, QUERIES), with a panel. */
static inline void multiply(const float *q, const float *panel, int64_t width, float *out, int64_t row) {
    Floats sums[QUERIES][VECTORS];
    for (int r = 0; r < QUERIES; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = all(0.0f);
    for (int64_t i = 0; i < width; i++, q += QUERIES, panel += PANEL) {
        Floats keys[VECTORS];
        for (int v = 0; v < VECTORS; v++) keys[v] = load(panel + v * LANES);
        for (int r = 0; r < QUERIES; r++) {
            for (int v = 0; v < VECTORS; v++) sums[r][v] += q[r] * keys[v];
        }
    }
    for (int r = 0; r < QUERIES; r++)
        for (int v = 0; v < VECTORS; v++) *(Floats *)(out + r * row + v * LANES) = sums[r][v];
}

/* The largest of some scores, NaN not among them. */
static float largest_of(const float *score, int64_t count) {
    Floats best[4];
    for (int n = 0; n < 4; n++) best[n] = all(-INFINITY);
    int64_t j = 0;
    for (; j + 4 * LANES <= count; j += 4 * LANES)
        for (int n = 0; n < 4; n++) best[n] = larger(load(score + j + n * LANES), best[n]);
    for (; j < count; j += LANES) best[0] = larger(load_part(score + j, count - j, -INFINITY), best[0]);
    best[0] = larger(larger(best[0], best[1]), larger(best[2], best[3]));
    float found = best[0][0];
    for (int n = 1; n < LANES; n++) found = best[0][n] > found ? best[0][n] : found;
    return found;
}

typedef struct {
    Floats total, moment, distance, punctuation, norm;
} Sums;

/* Turn some scores into exp(score - top) and add up what is linear in them; away: the distance of the first key. */
static inline void add(Sums *sums, float *score, const float *punctuation, const float *norms, Floats away,
                       float top, float floor, int64_t count) {
    const Floats below = load_part(score, count, -INFINITY) - top;
    const Floats d = larger(below, all(floor));
    Floats e = exponential(d);
    store_part(score, e, count);
    if (count < LANES) e = load_part(score, count, 0.0f);
    sums->total += e;
    sums->moment += d * e;
    sums->distance += (Floats)((Ints)away & 0x7fffffff) * e;
    sums->punctuation += load_part(punctuation, count, 0.0f) * e;
    if (norms) sums->norm += load_part(norms, count, 0.0f) * e;
}

/* One query: leave its sums, and exp(score - top) in its scores; return by what that is multiplied to be a weight.
   aside: room for S numbers. */
static float look(const Sweep *s, float *score, int64_t batch, int64_t head, int64_t query, float *aside) {
    const int64_t at = (batch * s->heads + head) * s->queries + query;
    const int64_t start = s->start[batch * s->queries + query], stop = s->stop[batch * s->queries + query];
    const int64_t place = s->corner + s->step * query, first = s->first_key[batch];
    const float *punctuation = s->is_punctuation + batch * s->keys;
    const float *norms = s->key_norms ? s->key_norms + (batch * s->heads + head) * s->keys : 0;
    const int64_t *apart = s->set_apart + s->set_apart_from[batch];
    const int64_t *apart_end = s->set_apart + s->set_apart_from[batch + 1];
    while (apart < apart_end && *apart < start) apart++;
    while (apart < apart_end && apart_end[-1] >= stop) apart_end--;

    s->first[at] = first >= start && first < stop ? score[first] : -INFINITY;
    float beside[2] = {-INFINITY, -INFINITY}; /* those next to the query are left out of the largest */
    if (s->placed) {
        for (int64_t n = -s->near; n <= s->near; n++)
            s->around[(n + s->near) * s->size + at] =
                place + n >= start && place + n < stop ? score[place + n] : -INFINITY;
        for (int n = 0; n < 2; n++) {
            const int64_t key = place + 2 * n - 1;
            if (key < start || key >= stop) continue;
            beside[n] = score[key];
            score[key] = -INFINITY;
        }
    }
    float best_apart = -INFINITY;
    for (const int64_t *key = apart; key < apart_end; key++) {
        aside[key - apart] = score[*key];
        best_apart = score[*key] > best_apart ? score[*key] : best_apart;
        score[*key] = -INFINITY;
    }
    const float best = start < stop ? largest_of(score + start, stop - start) : -INFINITY;
    for (const int64_t *key = apart; key < apart_end; key++) score[*key] = aside[key - apart];
    for (int n = 0; n < 2; n++) {
        const int64_t key = place + 2 * n - 1;
        if (s->placed && key >= start && key < stop) score[key] = beside[n];
    }
    float top = s->lowest;
    const float tops[4] = {best, best_apart, beside[0], beside[1]};
    for (int n = 0; n < 4; n++) top = tops[n] > top ? tops[n] : top;

    double total = 0, moment = 0, distance = 0, in_punctuation = 0, norm = 0, special = 0, special_norm = 0;
    Floats index;
    for (int n = 0; n < LANES; n++) index[n] = (float)n;
    for (int64_t from = start; from < stop; from += STRETCH) { /* single precision within, double between */
        const int64_t to = from + STRETCH < stop ? from + STRETCH : stop;
        Sums sums;
        memset(&sums, 0, sizeof sums);
        int64_t j = from;
        for (; j + LANES <= to; j += LANES)
            add(&sums, score + j, punctuation + j, norms ? norms + j : 0, (float)(place - j) - index, top,
                s->floor, LANES);
        if (j < to)
            add(&sums, score + j, punctuation + j, norms ? norms + j : 0, (float)(place - j) - index, top,
                s->floor, to - j);
        total += summed(sums.total);
        moment += summed(sums.moment);
        distance += summed(sums.distance);
        in_punctuation += summed(sums.punctuation);
        norm += summed(sums.norm);
    }
    for (const int64_t *key = apart; key < apart_end; key++) {
        if (!s->is_special[batch * s->keys + *key]) continue;
        special += score[*key];
        special_norm += norms ? score[*key] * norms[*key] : 0.0f;
    }
    s->top[at] = top;
    s->total[at] = (float)total;
    s->moment[at] = (float)moment;
    s->distance[at] = s->placed ? (float)distance : 0.0f;
    s->punctuation[at] = (float)in_punctuation;
    s->special[at] = (float)special;
    s->norm[at] = (float)norm;
    s->special_norm[at] = (float)special_norm;
    s->content[at] = best;
    s->apart[at] = best_apart;
    if (!s->counted[batch * s->queries + query] || !(top > s->lowest / 2)) return 0.0f;
    return (float)(1.0 / (total + (s->sink ? exp((double)s->sink[head] - top) : 0.0)));
}

/* Do heads from … to - 1 of all sequences, counted over (B, H). Scratch: panels (S rounded up to PANEL, K), few
   (strip, K), scores (strip, row) with row of at least S rounded up to PANEL, shares (2 S,). */
void sweep(const Sweep *s, int64_t from, int64_t to, float *panels, float *few, float *scores, int64_t row,
           float *shares) {
    const int64_t group = s->heads / s->groups;
    int64_t packed = -1;
    for (int64_t unit = from; unit < to; unit++) {
        const int64_t batch = unit / s->heads, head = unit % s->heads;
        const float *q = s->q + batch * s->q_batch + head * s->q_head;
        if (packed != unit / group) {
            packed = unit / group;
            pack(s, s->k + batch * s->k_batch + head / group * s->k_group, panels);
        }
        for (int64_t above = 0; above < s->queries; above += s->strip) {
            const int64_t rows = s->queries - above < s->strip ? s->queries - above : s->strip;
            const int64_t *start = s->start + batch * s->queries + above;
            const int64_t *stop = s->stop + batch * s->queries + above;
            int64_t low = s->keys, high = 0; /* what the strip sees */
            for (int64_t r = 0; r < rows; r++) {
                if (start[r] >= stop[r]) continue;
                low = start[r] < low ? start[r] : low;
                high = stop[r] > high ? stop[r] : high;
            }
            for (int64_t r = 0; r < rows; r += QUERIES)
                for (int64_t i = 0; i < s->width; i++)
                    for (int64_t n = 0; n < QUERIES; n++)
                        few[(r / QUERIES * s->width + i) * QUERIES + n] =
                            r + n < rows ? s->scale * q[(above + r + n) * s->q_row + i] : 0.0f;
            for (int64_t key = low / PANEL * PANEL; key < high; key += PANEL)
                for (int64_t r = 0; r < rows; r += QUERIES) {
                    int seen = 0;
                    for (int64_t n = r; n < r + QUERIES && n < rows; n++)
                        seen |= start[n] < key + PANEL && stop[n] > key;
                    if (seen)
                        multiply(few + r * s->width, panels + key * s->width, s->width, scores + r * row + key,
                                 row);
                }
            if (s->received) memset(shares + low, 0, (size_t)(high > low ? high - low : 0) * sizeof(float));
            for (int64_t r = 0; r < rows; r += 4) {
                const int64_t some = rows - r < 4 ? rows - r : 4;
                float share[4] = {0, 0, 0, 0};
                const float *e[4];
                for (int64_t n = 0; n < 4; n++) {
                    const int64_t query = r + (n < some ? n : 0);
                    float *score = scores + query * row;
                    e[n] = score;
                    if (n >= some) continue;
                    share[n] = look(s, score, batch, head, above + query, shares + s->keys);
                    if (!s->received) continue;
                    const int64_t a = share[n] == 0.0f ? high : start[query] < low ? low : start[query];
                    const int64_t b = share[n] == 0.0f ? high : stop[query] > low ? stop[query] : low;
                    for (int64_t j = low; j < a; j++) score[j] = 0.0f; /* not seen, or not to be counted */
                    for (int64_t j = b; j < high; j++) score[j] = 0.0f;
                }
                if (!s->received) continue;
                for (int64_t j = low; j < high; j += LANES) {
                    const int64_t count = high - j;
                    Floats sum = load_part(shares + j, count, 0.0f);
                    for (int n = 0; n < 4; n++) sum += all(share[n]) * load_part(e[n] + j, count, 0.0f);
                    store_part(shares + j, sum, count);
                }
            }
            if (s->received)
                for (int64_t j = low; j < high; j++) s->received[unit * s->keys + j] += shares[j];
        }
    }
}
