// Run a compiled model of float32 inputs and outputs on ones, and print the first values of each
// result.
//
//     c++ -std=c++17 -O2 -I ../../runtime/include run.cpp -o run && ./run NAME.cuvil
//
// With a second argument, of a package built with --lora swap: as that adapter makes it.
#include <algorithm>
#include <iostream>

#include "cuvil.hpp"

static void run(const std::string &path, const char *adapter)
{
    cuvil::Model model(path);
    if (adapter != nullptr)
        model.use(adapter);
    cuvil::Context context = model.context();
    std::vector<std::vector<float>> memory;
    int index = 0;
    for (const cuvil_tensor_info &info : model.inputs()) {
        std::vector<int64_t> dims;
        int64_t count = 1;
        for (int axis = 0; axis < info.rank; axis++) {
            dims.push_back(info.dims[axis] < 0 ? std::max<int64_t>(info.lo[axis], 1)
                                               : info.dims[axis]);
            count *= dims.back();
        }
        memory.emplace_back(static_cast<std::size_t>(count), 1.0f);
        context.set_input(index++, memory.back().data(), dims);
    }
    context.run();

    index = 0;
    for (const cuvil_tensor_info &info : model.outputs()) {
        cuvil::Result<float> result = context.output<float>(index++);
        std::cout << info.name << ":";
        for (int64_t i = 0; i < result.size() && i < 8; i++)
            std::cout << " " << result[i];
        std::cout << (result.size() > 8 ? " ...\n" : "\n");
    }
}

int main(int argc, char **argv)
{
    try {
        if (argc != 2 && argc != 3) {
            std::cerr << "usage: run NAME.cuvil [ADAPTER]\n";
            return 2;
        }
        run(argv[1], argc == 3 ? argv[2] : nullptr);
    } catch (const cuvil::Error &error) {
        std::cerr << "error " << error.code << ": " << error.what() << "\n";
        return 1;
    }
}
