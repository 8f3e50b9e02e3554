// The C API for C++17: objects that free themselves, errors as exceptions.
//
//     cuvil::Model model("resnet18.cuvil");
//     cuvil::Context context = model.context();
//     context.set_input(0, pixels.data(), {1, 3, 224, 224});
//     context.run();
//     cuvil::Result<float> scores = context.output<float>(0);   // in place, until the next run
//
// A Model must outlive its Contexts. A Context belongs to one thread at a time.
#ifndef CUVIL_HPP
#define CUVIL_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cuvil_dl.h"

namespace cuvil
{

class Error : public std::runtime_error
{
public:
    Error(int code, const std::string &message) : std::runtime_error(message), code(code) {}
    const int code; // cuvil_status; 0 when the library itself cannot be loaded
};

// The dtype of a C++ type. bool is one byte here as it is there.
template <class T> constexpr cuvil_dtype dtype_of()
{
    if constexpr (std::is_same_v<T, bool>)
        return CUVIL_BOOL;
    else if constexpr (std::is_floating_point_v<T>) {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "float or double");
        return sizeof(T) == 4 ? CUVIL_FLOAT32 : CUVIL_FLOAT64;
    } else {
        static_assert(std::is_integral_v<T>, "a number");
        constexpr int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
        return static_cast<cuvil_dtype>((std::is_signed_v<T> ? CUVIL_INT8 : CUVIL_UINT8) + log2);
    }
}

template <class T> struct Result {
    const T *data;
    std::vector<int64_t> dims;

    int64_t size() const
    {
        int64_t count = 1;
        for (int64_t dim : dims)
            count *= dim;
        return count;
    }
    const T *begin() const { return data; }
    const T *end() const { return data + size(); }
    const T &operator[](int64_t i) const { return data[i]; }
};

class Context
{
public:
    // `data` is read during run(), not copied. For what C++ has no type for (bfloat16, float8, int4)
    // give the dtype and any type of that size.
    template <class T>
    void set_input(int index, const T *data, const std::vector<int64_t> &dims,
                   cuvil_dtype dtype = dtype_of<T>())
    {
        cuvil_tensor tensor = describe(const_cast<T *>(data), dims, dtype);
        check(api_->set_input(handle_.get(), index, &tensor));
    }

    // Let output `index` be written to `data`, of the result's exact shape (else run() throws).
    template <class T>
    void set_output(int index, T *data, const std::vector<int64_t> &dims,
                    cuvil_dtype dtype = dtype_of<T>())
    {
        cuvil_tensor tensor = describe(data, dims, dtype);
        check(api_->set_output(handle_.get(), index, &tensor));
    }

    void run() { check(api_->run(handle_.get())); }

    template <class T> Result<T> output(int index, cuvil_dtype dtype = dtype_of<T>()) const
    {
        cuvil_tensor tensor;
        check(api_->get_output(handle_.get(), index, &tensor));
        if (tensor.dtype != dtype)
            throw Error(CUVIL_ERROR_DTYPE,
                        "output " + std::to_string(index) + " has another dtype");
        return {static_cast<const T *>(tensor.data), {tensor.dims, tensor.dims + tensor.rank}};
    }

    // For the inputs set so far; -1 where only a run can tell.
    std::vector<int64_t> output_dims(int index) const
    {
        cuvil_tensor tensor;
        check(api_->infer_shapes(handle_.get()));
        check(api_->get_output(handle_.get(), index, &tensor));
        return {tensor.dims, tensor.dims + tensor.rank};
    }

    cuvil_context *get() const { return handle_.get(); }

private:
    friend class Model;
    using Handle = std::unique_ptr<cuvil_context, CUVIL_TYPE_OF(cuvil_context_destroy)>;
    Context(std::shared_ptr<const cuvil_api> api, cuvil_context *context)
        : api_(std::move(api)), handle_(context, api_->context_destroy)
    {
    }

    static cuvil_tensor describe(void *data, const std::vector<int64_t> &dims, cuvil_dtype dtype)
    {
        if (dims.size() > CUVIL_MAX_RANK)
            throw Error(CUVIL_ERROR_SHAPE, "more than 8 dimensions");
        cuvil_tensor tensor = {};
        tensor.data = data;
        tensor.dtype = dtype;
        tensor.rank = static_cast<int32_t>(dims.size());
        for (std::size_t i = 0; i < dims.size(); i++)
            tensor.dims[i] = dims[i];
        return tensor;
    }

    void check(cuvil_status status) const
    {
        if (status != CUVIL_OK)
            throw Error(status, api_->last_error());
    }

    std::shared_ptr<const cuvil_api> api_;
    Handle handle_;
};

class Model
{
public:
    // path: of model.so. level: a CPU level of the package; empty: the best that this CPU runs.
    explicit Model(const std::string &path, const std::string &level = "") : api_(load(path))
    {
        check(api_->open(level.empty() ? nullptr : level.c_str(), &handle_));
    }
    ~Model() { api_->close(handle_); }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    std::string level() const { return api_->level_name(handle_); }
    std::string metadata() const { return api_->metadata(); } // JSON
    std::vector<cuvil_tensor_info> inputs() const
    {
        return infos(api_->input_count(handle_), api_->input_info);
    }
    std::vector<cuvil_tensor_info> outputs() const
    {
        return infos(api_->output_count(handle_), api_->output_info);
    }

    Context context(int threads = 0) const // 0: as many as the process may run on
    {
        cuvil_options options = {sizeof options, threads};
        cuvil_context *context = nullptr;
        check(api_->context_create(handle_, &options, &context));
        return Context(api_, context);
    }

    // Adapters, of a package built with --lora swap; other threads may run the model meanwhile.
    // Those that other threads unload while they are listed may be missing.
    std::vector<cuvil_adapter_info> adapters() const
    {
        std::vector<cuvil_adapter_info> result;
        cuvil_adapter_info info;
        int count = api_->adapter_count == nullptr ? 0 : api_->adapter_count(handle_);
        for (int i = 0; i < count && api_->get_adapter(handle_, i, &info) == CUVIL_OK; i++)
            result.push_back(info);
        return result;
    }
    // Runs that begin afterwards use this one; nullptr: none.
    void use(const char *name) { check(known(api_->use_adapter)(handle_, name)); }
    void use(const std::string &name) { use(name.c_str()); }
    // A .cuvla file. name: what use() will call it; empty: the name in the file.
    void load_adapter(const std::string &path, const std::string &name = "")
    {
        const char *given = name.empty() ? nullptr : name.c_str();
        check(known(api_->load_adapter)(handle_, path.c_str(), given));
    }
    void unload_adapter(const std::string &name)
    {
        check(known(api_->unload_adapter)(handle_, name.c_str()));
    }

private:
    template <class Function> static Function known(Function function)
    {
        if (function == nullptr)
            throw Error(CUVIL_ERROR_NO_ADAPTER,
                        "the package was built before packages took adapters");
        return function;
    }

    static std::shared_ptr<const cuvil_api> load(const std::string &path)
    {
        std::shared_ptr<cuvil_api> api(new cuvil_api(), [](cuvil_api *loaded) {
            cuvil_dl_unload(loaded);
            delete loaded;
        });
        if (const char *problem = cuvil_dl_load(api.get(), path.c_str()))
            throw Error(0, problem);
        return api;
    }

    std::vector<cuvil_tensor_info> infos(int count, CUVIL_TYPE_OF(cuvil_input_info) describe) const
    {
        std::vector<cuvil_tensor_info> result(static_cast<std::size_t>(count));
        for (int i = 0; i < count; i++)
            check(describe(handle_, i, &result[static_cast<std::size_t>(i)]));
        return result;
    }

    void check(cuvil_status status) const
    {
        if (status != CUVIL_OK)
            throw Error(status, api_->last_error());
    }

    std::shared_ptr<const cuvil_api> api_;
    cuvil_model *handle_ = nullptr;
};

} // namespace cuvil
#endif
