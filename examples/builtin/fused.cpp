// Loops that PyTorch would run as dozens of passes over memory, each here as one pass, with its gradient.
// Rows are tokens. Widths D (hidden) and S (streams) are fixed when this is compiled; bf16 is passed as uint16_t.

#include <cmath>
#include <cstdint>
#include <cstring>

typedef uint16_t bf16;
constexpr int M = 2 * S + S * S;
constexpr int LANES = 16;
constexpr int MOST_ROUNDS = 24;

static inline float wide(bf16 v) {
    uint32_t u = uint32_t(v) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline bf16 narrow(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return bf16((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" {

// new[n] = post[n] out + sum_m comb[m][n] x[m] (or new = x without out); h = rms(sum pre[i] new[i]) w.
// Also new in bf16, the inverse root mean square of new (inv) and of the collapsed row (hinv).
void advance_forward(int64_t rows, const float* x, const float* out, const float* post, const float* comb, const float* pre, const float* w,
                     float eps, float* made, bf16* made16, bf16* h, float* inv, float* hinv) {
    for (int64_t t = 0; t < rows; t++) {
        const float* xt = x + t * S * D;
        float* y = made + t * S * D;
        if (out) {
            const float *o = out + t * D, *p = post + t * S, *c = comb + t * S * S;
            for (int n = 0; n < S; n++)
                for (int d = 0; d < D; d++) {
                    float v = p[n] * o[d];
                    for (int m = 0; m < S; m++) v += c[m * S + n] * xt[m * D + d];
                    y[n * D + d] = v;
                }
        } else {
            memcpy(y, xt, S * D * sizeof(float));
        }
        float sum = 0;
        for (int i = 0; i < S * D; i++) {
            sum += y[i] * y[i];
            made16[t * S * D + i] = narrow(y[i]);
        }
        inv[t] = 1.0f / sqrtf(sum / (S * D) + eps);
        float row[D], square = 0;
        for (int d = 0; d < D; d++) {
            float v = 0;
            for (int i = 0; i < S; i++) v += pre[t * S + i] * y[i * D + d];
            row[d] = v;
            square += v * v;
        }
        float r = 1.0f / sqrtf(square / D + eps);
        hinv[t] = r;
        for (int d = 0; d < D; d++) h[t * D + d] = narrow(row[d] * r * w[d]);
    }
}

// gmade, gz, ginv, gh: gradients of new, of new in bf16, of inv and of h; each may be null.
void advance_backward(int64_t rows, const float* x, const float* out, const float* post, const float* comb, const float* pre, const float* w,
                      const float* made, const float* inv, const float* hinv, const float* gmade, const bf16* gz, const float* ginv,
                      const bf16* gh, float* gx, float* gout, float* gpost, float* gcomb, float* gpre, float* gw) {
    for (int64_t t = 0; t < rows; t++) {
        const float *y = made + t * S * D, *p = pre + t * S;
        float g[S * D], row[D], a[D], dot = 0, r = hinv[t];
        for (int d = 0; d < D; d++) {
            float v = 0;
            for (int i = 0; i < S; i++) v += p[i] * y[i * D + d];
            row[d] = v;
            float e = gh ? wide(gh[t * D + d]) : 0;
            gw[d] += e * v * r;
            a[d] = e * w[d];
            dot += a[d] * v;
        }
        float back = r * r * r * dot / D;
        for (int d = 0; d < D; d++) a[d] = r * a[d] - back * row[d];
        float scale = !ginv ? 0 : -ginv[t] * inv[t] * inv[t] * inv[t] / (S * D);
        for (int i = 0; i < S; i++) {
            float gp = 0;
            for (int d = 0; d < D; d++) {
                int k = i * D + d;
                gp += a[d] * y[k];
                g[k] = scale * y[k] + p[i] * a[d];
            }
            gpre[t * S + i] = gp;
        }
        if (gz)
            for (int k = 0; k < S * D; k++) g[k] += wide(gz[t * S * D + k]);
        if (gmade)
            for (int k = 0; k < S * D; k++) g[k] += gmade[t * S * D + k];
        float* gxt = gx + t * S * D;
        if (!out) {
            memcpy(gxt, g, sizeof(g));
            continue;
        }
        const float *xt = x + t * S * D, *o = out + t * D, *po = post + t * S, *c = comb + t * S * S;
        for (int d = 0; d < D; d++) {
            float v = 0;
            for (int n = 0; n < S; n++) v += po[n] * g[n * D + d];
            gout[t * D + d] = v;
        }
        for (int n = 0; n < S; n++) {
            float v = 0;
            for (int d = 0; d < D; d++) v += g[n * D + d] * o[d];
            gpost[t * S + n] = v;
        }
        for (int m = 0; m < S; m++) {
            for (int d = 0; d < D; d++) {
                float v = 0;
                for (int n = 0; n < S; n++) v += c[m * S + n] * g[n * D + d];
                gxt[m * D + d] = v;
            }
            for (int n = 0; n < S; n++) {
                float v = 0;
                for (int d = 0; d < D; d++) v += xt[m * D + d] * g[n * D + d];
                gcomb[t * S * S + m * S + n] = v;
            }
        }
    }
}

// z [rows, M] times inv to pre, post and the balanced comb. The lanes of a group are independent rows.
static void balance(float steps[][S * S][LANES], int rounds, float eps) {
    // steps[0] is the start; odd numbers divide columns, even ones rows
    for (int k = 1; k < 2 * rounds; k++)
        for (int a = 0; a < S; a++) {
            float sum[LANES];
            for (int l = 0; l < LANES; l++) sum[l] = eps;
            for (int b = 0; b < S; b++) {
                int at = k % 2 ? b * S + a : a * S + b;
                for (int l = 0; l < LANES; l++) sum[l] += steps[k - 1][at][l];
            }
            for (int l = 0; l < LANES; l++) sum[l] = 1.0f / sum[l];
            for (int b = 0; b < S; b++) {
                int at = k % 2 ? b * S + a : a * S + b;
                for (int l = 0; l < LANES; l++) steps[k][at][l] = steps[k - 1][at][l] * sum[l];
            }
        }
}

static void begin(const float* z, const float* inv, const float* scale, const float* base, int64_t t, int64_t rows, float c[S * S][LANES],
                  float soft[S * S][LANES], float eps) {
    for (int l = 0; l < LANES; l++) {
        int64_t r = t + l < rows ? t + l : rows - 1;
        for (int k = 0; k < S * S; k++) c[k][l] = z[r * M + 2 * S + k] * inv[r] * scale[2] + base[2 * S + k];
    }
    for (int m = 0; m < S; m++)
        for (int l = 0; l < LANES; l++) {
            float most = c[m * S][l], sum = 0;
            for (int n = 1; n < S; n++) most = most > c[m * S + n][l] ? most : c[m * S + n][l];
            for (int n = 0; n < S; n++) sum += soft[m * S + n][l] = expf(c[m * S + n][l] - most);
            for (int n = 0; n < S; n++) {
                soft[m * S + n][l] /= sum;
                c[m * S + n][l] = soft[m * S + n][l] + eps;
            }
        }
}

void mixes_forward(int64_t rows, const float* z, const float* inv, const float* scale, const float* base, float eps, int rounds, float* pre,
                   float* post, float* comb) {
    static thread_local float steps[2 * MOST_ROUNDS][S * S][LANES], soft[S * S][LANES];
    for (int64_t t = 0; t < rows; t += LANES) {
        begin(z, inv, scale, base, t, rows, steps[0], soft, eps);
        balance(steps, rounds, eps);
        for (int l = 0; l < LANES && t + l < rows; l++) {
            int64_t r = t + l;
            for (int i = 0; i < S; i++) {
                pre[r * S + i] = sigmoid(z[r * M + i] * inv[r] * scale[0] + base[i]) + eps;
                post[r * S + i] = 2 * sigmoid(z[r * M + S + i] * inv[r] * scale[1] + base[S + i]);
            }
            for (int k = 0; k < S * S; k++) comb[r * S * S + k] = steps[2 * rounds - 1][k][l];
        }
    }
}

void mixes_backward(int64_t rows, const float* z, const float* inv, const float* scale, const float* base, float eps, int rounds,
                    const float* gpre, const float* gpost, const float* gcomb, float* gz, float* ginv, float* gscale, float* gbase) {
    static thread_local float steps[2 * MOST_ROUNDS][S * S][LANES], soft[S * S][LANES], g[S * S][LANES];
    for (int64_t t = 0; t < rows; t += LANES) {
        begin(z, inv, scale, base, t, rows, steps[0], soft, eps);
        balance(steps, rounds, eps);
        for (int l = 0; l < LANES; l++)
            for (int k = 0; k < S * S; k++) g[k][l] = t + l < rows ? gcomb[(t + l) * S * S + k] : 0;
        for (int k = 2 * rounds - 1; k > 0; k--)
            for (int a = 0; a < S; a++) {  // y = x / (sum x + eps): gx = (gy - sum gy y) / (sum x + eps)
                float sum[LANES], dot[LANES];
                for (int l = 0; l < LANES; l++) sum[l] = eps, dot[l] = 0;
                for (int b = 0; b < S; b++) {
                    int at = k % 2 ? b * S + a : a * S + b;
                    for (int l = 0; l < LANES; l++) sum[l] += steps[k - 1][at][l], dot[l] += g[at][l] * steps[k][at][l];
                }
                for (int l = 0; l < LANES; l++) sum[l] = 1.0f / sum[l];
                for (int b = 0; b < S; b++) {
                    int at = k % 2 ? b * S + a : a * S + b;
                    for (int l = 0; l < LANES; l++) g[at][l] = (g[at][l] - dot[l]) * sum[l];
                }
            }
        for (int m = 0; m < S; m++)
            for (int l = 0; l < LANES; l++) {
                float dot = 0;
                for (int n = 0; n < S; n++) dot += g[m * S + n][l] * soft[m * S + n][l];
                for (int n = 0; n < S; n++) g[m * S + n][l] = soft[m * S + n][l] * (g[m * S + n][l] - dot);
            }
        for (int l = 0; l < LANES && t + l < rows; l++) {
            int64_t r = t + l;
            float gi = 0;
            for (int k = 0; k < M; k++) {
                int kind = k < S ? 0 : k < 2 * S ? 1 : 2;
                float raw = z[r * M + k], e;
                if (kind == 2) {
                    e = g[k - 2 * S][l];
                } else {
                    float s = sigmoid(raw * inv[r] * scale[kind] + base[k]);
                    e = s * (1 - s) * (kind ? 2 * gpost[r * S + k - S] : gpre[r * S + k]);
                }
                gbase[k] += e;
                gscale[kind] += e * raw * inv[r];
                e *= scale[kind];
                gi += e * raw;
                gz[r * M + k] = e * inv[r];
            }
            ginv[r] = gi;
        }
    }
}

// Softmax over `near` window logits, `far` compressed ones (may be 0) and a sink without a value; in place. Masks are bytes
// per row and key, a row being `heads` heads.
void softmax_forward(int64_t rows, int heads, int near, int far, bf16* a, bf16* b, const uint8_t* seen, const uint8_t* chosen, const float* sink) {
    for (int64_t t = 0; t < rows; t++)
        for (int h = 0; h < heads; h++) {
            bf16 *x = a + (t * heads + h) * near, *y = b + (t * heads + h) * far;
            const uint8_t *s = seen + t * near, *c = chosen + t * far;
            float most = sink[h], sum = 0;
            for (int i = 0; i < near; i++) {
                float v = s[i] ? wide(x[i]) : -1e30f;
                most = v > most ? v : most;
            }
            for (int i = 0; i < far; i++) {
                float v = c[i] ? wide(y[i]) : -1e30f;
                most = v > most ? v : most;
            }
            float p[near + far];
            for (int i = 0; i < near; i++) sum += p[i] = s[i] ? expf(wide(x[i]) - most) : 0;
            for (int i = 0; i < far; i++) sum += p[near + i] = c[i] ? expf(wide(y[i]) - most) : 0;
            float inverse = 1.0f / (sum + expf(sink[h] - most));
            for (int i = 0; i < near; i++) x[i] = narrow(p[i] * inverse);
            for (int i = 0; i < far; i++) y[i] = narrow(p[near + i] * inverse);
        }
}

void softmax_backward(int64_t rows, int heads, int near, int far, const bf16* a, const bf16* b, bf16* ga, bf16* gb, float* gsink) {
    for (int64_t t = 0; t < rows; t++)
        for (int h = 0; h < heads; h++) {
            int64_t at = t * heads + h;
            const bf16 *x = a + at * near, *y = b + at * far;
            bf16 *gx = ga + at * near, *gy = gb + at * far;
            float dot = 0, sum = 0;
            for (int i = 0; i < near; i++) dot += wide(x[i]) * wide(gx[i]), sum += wide(x[i]);
            for (int i = 0; i < far; i++) dot += wide(y[i]) * wide(gy[i]), sum += wide(y[i]);
            for (int i = 0; i < near; i++) gx[i] = narrow(wide(x[i]) * (wide(gx[i]) - dot));
            for (int i = 0; i < far; i++) gy[i] = narrow(wide(y[i]) * (wide(gy[i]) - dot));
            gsink[h] -= (1 - sum) * dot;
        }
}

// y = rms(x) w, then (pairs > 0) the trailing 2 pairs channels of each head turned by cos, sin [rows, pairs], all times scale.
void turn_forward(int64_t rows, int heads, int width, int pairs, const bf16* x, const float* w, const float* cos, const float* sin, float scale,
                  float eps, float* inv, bf16* y) {
    for (int64_t t = 0; t < rows * heads; t++) {
        float v[width], r = scale, sum = 0;
        for (int i = 0; i < width; i++) v[i] = wide(x[t * width + i]), sum += v[i] * v[i];
        if (w) {
            inv[t] = 1.0f / sqrtf(sum / width + eps);
            for (int i = 0; i < width; i++) v[i] *= inv[t] * w[i];
        }
        const float *c = cos + t / heads * pairs, *s = sin + t / heads * pairs;
        float* tail = v + width - 2 * pairs;
        for (int i = 0; i < pairs; i++) {
            float p = tail[2 * i], q = tail[2 * i + 1];
            tail[2 * i] = p * c[i] - q * s[i];
            tail[2 * i + 1] = p * s[i] + q * c[i];
        }
        for (int i = 0; i < width; i++) y[t * width + i] = narrow(v[i] * r);
    }
}

void turn_backward(int64_t rows, int heads, int width, int pairs, const bf16* x, const float* w, const float* cos, const float* sin, float scale,
                   const float* inv, const bf16* gy, float* gw, bf16* gx) {
    for (int64_t t = 0; t < rows * heads; t++) {
        float g[width];
        for (int i = 0; i < width; i++) g[i] = wide(gy[t * width + i]) * scale;
        const float *c = cos + t / heads * pairs, *s = sin + t / heads * pairs;
        float* tail = g + width - 2 * pairs;
        for (int i = 0; i < pairs; i++) {
            float p = tail[2 * i], q = tail[2 * i + 1];
            tail[2 * i] = p * c[i] + q * s[i];
            tail[2 * i + 1] = q * c[i] - p * s[i];
        }
        if (w) {
            float dot = 0, r = inv[t];
            for (int i = 0; i < width; i++) {
                float v = wide(x[t * width + i]);
                gw[i] += g[i] * v * r;
                g[i] *= w[i];
                dot += g[i] * v;
            }
            float back = r * r * r * dot / width;
            for (int i = 0; i < width; i++) g[i] = r * g[i] - back * wide(x[t * width + i]);
        }
        for (int i = 0; i < width; i++) gx[t * width + i] = narrow(g[i]);
    }
}

// a [rows, 2 inner] = (gate, up): silu(min(gate, limit)) clamp(up, limit) weight
void gated_forward(int64_t rows, int inner, float limit, const bf16* a, const float* weight, bf16* y) {
    for (int64_t t = 0; t < rows; t++)
        for (int i = 0; i < inner; i++) {
            float g = fminf(wide(a[t * 2 * inner + i]), limit), u = fmaxf(-limit, fminf(wide(a[t * 2 * inner + inner + i]), limit));
            y[t * inner + i] = narrow(g * sigmoid(g) * u * weight[t]);
        }
}

void gated_backward(int64_t rows, int inner, float limit, const bf16* a, const float* weight, const bf16* gy, bf16* ga, float* gweight) {
    for (int64_t t = 0; t < rows; t++) {
        float sum = 0;
        for (int i = 0; i < inner; i++) {
            float gate = wide(a[t * 2 * inner + i]), up = wide(a[t * 2 * inner + inner + i]), e = wide(gy[t * inner + i]);
            float g = fminf(gate, limit), u = fmaxf(-limit, fminf(up, limit));
            float s = sigmoid(g);
            sum += e * g * s * u;
            e *= weight[t];
            ga[t * 2 * inner + i] = narrow(gate > limit ? 0 : e * u * s * (1 + g * (1 - s)));
            ga[t * 2 * inner + inner + i] = narrow(fabsf(up) > limit ? 0 : e * g * s);
        }
        gweight[t] = sum;
    }
}

// An engram's keys and value kv [rows, S + 1, D] to streams x: y[i] = x[i] + gate[i] v, gate[i] = sigmoid(signed root of the
// product of both normalised). live [rows] is 0 where nothing is added.
static inline float inverse_size(const float* v, float eps) {
    float sum = 0;
    for (int d = 0; d < D; d++) sum += v[d] * v[d];
    return 1.0f / sqrtf(sum / D + eps);
}

void recall_forward(int64_t rows, const float* x, const bf16* kv, const float* qw, const float* kw, const float* live, float eps, float* y) {
    for (int64_t t = 0; t < rows; t++) {
        float k[(S + 1) * D];
        for (int i = 0; i < (S + 1) * D; i++) k[i] = wide(kv[t * (S + 1) * D + i]);
        for (int i = 0; i < S; i++) {
            const float* a = x + (t * S + i) * D;
            float dot = 0, r = inverse_size(a, eps) * inverse_size(k + i * D, eps + 1e-12f);
            for (int d = 0; d < D; d++) dot += a[d] * qw[i * D + d] * k[i * D + d] * kw[i * D + d];
            dot *= r / sqrtf(D);
            float size = sqrtf(fmaxf(fabsf(dot), 1e-6f)), gate = live[t] * sigmoid(dot < 0 ? -size : dot > 0 ? size : 0);
            for (int d = 0; d < D; d++) y[(t * S + i) * D + d] = a[d] + gate * k[S * D + d];
        }
    }
}

void recall_backward(int64_t rows, const float* x, const bf16* kv, const float* qw, const float* kw, const float* live, float eps, const float* gy,
                     float* gx, bf16* gkv, float* gqw, float* gkw) {
    for (int64_t t = 0; t < rows; t++) {
        float k[(S + 1) * D], gv[D];
        for (int i = 0; i < (S + 1) * D; i++) k[i] = wide(kv[t * (S + 1) * D + i]);
        for (int d = 0; d < D; d++) gv[d] = 0;
        for (int i = 0; i < S; i++) {
            const float *a = x + (t * S + i) * D, *b = k + i * D, *q = qw + i * D, *w = kw + i * D, *g = gy + (t * S + i) * D;
            float ra = inverse_size(a, eps), rb = inverse_size(b, eps + 1e-12f), dot = 0, along = 0;
            for (int d = 0; d < D; d++) dot += a[d] * q[d] * b[d] * w[d], along += g[d] * k[S * D + d];
            dot *= ra * rb / sqrtf(D);
            float size = sqrtf(fmaxf(fabsf(dot), 1e-6f)), gate = sigmoid(dot < 0 ? -size : dot > 0 ? size : 0);
            float e = fabsf(dot) > 1e-6f ? live[t] * along * gate * (1 - gate) * 0.5f / size : 0;
            float s = e * ra * rb / sqrtf(D), back = e * dot / D;  // e * dot is each side's product with its own gradient
            for (int d = 0; d < D; d++) {
                float both = s * a[d] * b[d];
                gqw[i * D + d] += both * w[d];
                gkw[i * D + d] += both * q[d];
                gx[(t * S + i) * D + d] = g[d] + s * q[d] * b[d] * w[d] - back * ra * ra * a[d];
                gkv[(t * (S + 1) + i) * D + d] = narrow(s * q[d] * a[d] * w[d] - back * rb * rb * b[d]);
                gv[d] += live[t] * gate * g[d];
            }
        }
        for (int d = 0; d < D; d++) gkv[(t * (S + 1) + S) * D + d] = narrow(gv[d]);
    }
}
}
