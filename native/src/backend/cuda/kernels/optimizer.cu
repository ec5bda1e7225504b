// AdamW on master weights in float, which also rounds them to the weights' format and clears the gradient.
// p: weight, master (may be weight), gradient, mean, square. n: elements.
// f: beta1, beta2, 1 - beta1, 1 - beta2, mean's share, square's share, share kept by decay, learning rate, epsilon.
template <class T> __device__ void adamw(const Args& a) {
    T* weight = (T*)a.p[0];
    float *master = (float*)a.p[1], *gradient = (float*)a.p[2], *means = (float*)a.p[3], *squares = (float*)a.p[4];
    EACH(i, a.n[0]) {
        float g = gradient[i];
        float mean = a.f[0] * means[i] + a.f[2] * g;
        float square = a.f[1] * squares[i] + a.f[3] * g * g;
        float direction = mean * a.f[4] / (sqrtf(square * a.f[5]) + a.f[8]);
        float w = a.f[6] * master[i] - a.f[7] * direction;
        means[i] = mean;
        squares[i] = square;
        gradient[i] = 0.0f;
        master[i] = w;
        weight[i] = Number<T>::of(w);
    }
}
KERNEL(adamw)
