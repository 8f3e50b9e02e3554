/* Load a model.so at run time and find the functions of cuvil.h in it.
 *
 *     cuvil_api api;
 *     const char *problem = cuvil_dl_load(&api, "resnet18.cuvil");
 *     if (problem == NULL) { api.open(NULL, &model); ... cuvil_dl_unload(&api); }
 *
 * Several models may be loaded at once, each by its own cuvil_api. With a glibc older than 2.34,
 * link -ldl.
 */
#ifndef CUVIL_DL_H
#define CUVIL_DL_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cuvil.h"

#ifdef __cplusplus
#define CUVIL_TYPE_OF(function) decltype(&function)
#else
#define CUVIL_TYPE_OF(function) __typeof__(&function)
#endif

#define CUVIL_FUNCTIONS(F)                                                                         \
    F(open)                                                                                        \
    F(close) F(last_error) F(metadata) F(api_version) F(level_name) F(input_count) F(output_count) \
        F(input_info) F(output_info) F(context_create) F(context_destroy) F(set_input)             \
            F(infer_shapes) F(get_output) F(set_output) F(run) F(context_bytes) F(set_probe)

/* NULL in packages that were built before there were any. */
#define CUVIL_LATER_FUNCTIONS(F)                                                                  \
    F(adapter_count) F(get_adapter) F(use_adapter) F(load_adapter) F(unload_adapter)              \
        F(get_tenant) F(tenant_load_adapter) F(tenant_unload_adapter) F(tenant_adapter_count)     \
            F(tenant_get_adapter) F(set_adapters) F(get_pages) F(model_bytes)

#define CUVIL_MEMBER(name) CUVIL_TYPE_OF(cuvil_##name) name;
typedef struct {
    void *library;
    CUVIL_FUNCTIONS(CUVIL_MEMBER)
    CUVIL_LATER_FUNCTIONS(CUVIL_MEMBER)
} cuvil_api;
#undef CUVIL_MEMBER

static inline void cuvil_dl_unload(cuvil_api *api)
{
    if (api->library != NULL)
        dlclose(api->library);
    api->library = NULL;
}

/* dlopen of a file: dlopen itself looks for a name without a slash among the system's libraries. */
static inline void *cuvil_dl_open(const char *path)
{
    char place[4096];
    struct stat status;
    int folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    int length = snprintf(place, sizeof place, "%s%s%s", strchr(path, '/') == NULL ? "./" : "",
                          path, folder ? "/model.so" : "");
    return dlopen(length > 0 && length < (int)sizeof place ? place : path, RTLD_NOW | RTLD_LOCAL);
}

/* NULL on success, else what is wrong (valid until this thread's next dl call). `path` is a model.so,
 * or the folder NAME.cuvil that holds one. A file that was replaced while the old one is loaded needs
 * another spelling of its path ("././model.so"): the linker goes by names. */
static inline const char *cuvil_dl_load(cuvil_api *api, const char *path)
{
    void *symbol;
    const char *problem = NULL;
    memset(api, 0, sizeof *api);
    api->library = cuvil_dl_open(path);
    if (api->library == NULL)
        return dlerror();
#define CUVIL_FIND(name)                                \
    symbol = dlsym(api->library, "cuvil_" #name);       \
    memcpy((void *)&api->name, &symbol, sizeof symbol); \
    if (symbol == NULL && problem == NULL)              \
        problem = "no cuvil model: cuvil_" #name " is missing";
    CUVIL_FUNCTIONS(CUVIL_FIND)
#undef CUVIL_FIND
#define CUVIL_FIND(name)                                \
    symbol = dlsym(api->library, "cuvil_" #name);       \
    memcpy((void *)&api->name, &symbol, sizeof symbol);
    CUVIL_LATER_FUNCTIONS(CUVIL_FIND)
#undef CUVIL_FIND
    if (problem == NULL && api->api_version() != CUVIL_API_VERSION)
        problem = "the model has another version of the C API";
    if (problem != NULL)
        cuvil_dl_unload(api);
    return problem;
}

#endif
