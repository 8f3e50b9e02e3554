// before choose-convolutions
module {
  func.func @main(%arg0: tensor<?x16x?x80xf32, #ai.dims<["n", "16", "h", "80"]>>) -> tensor<?x48x?x38xf32, #ai.dims<["n", "48", "floordiv(h + 1, 2)", "38"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "8795dbb547416c35", key = "w1", layout = "", shape = [32, 16, 3, 3]} : () -> tensor<32x16x3x3xf32>
    %1 = "ai.constant"() {dtype = "float32", fingerprint = "f28840ed4cc61280", key = "w2", layout = "", shape = [32]} : () -> tensor<32xf32>
    %2 = "ai.conv"(%arg0, %0, %1) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x16x?x80xf32, #ai.dims<["n", "16", "h", "80"]>>, tensor<32x16x3x3xf32>, tensor<32xf32>) -> tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>
    %3 = "ai.relu"(%2) : (tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>) -> tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>
    %4 = "ai.constant"() {dtype = "float32", fingerprint = "1e9f233b45311be8", key = "w4", layout = "", shape = [16, 32, 3, 3]} : () -> tensor<16x32x3x3xf32>
    %5 = "ai.conv"(%3, %4) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [2, 2]} : (tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>, tensor<16x32x3x3xf32>) -> tensor<?x16x?x40xf32, #ai.dims<["n", "16", "floordiv(h + 1, 2)", "40"]>>
    %6 = "ai.constant"() {dtype = "float32", fingerprint = "1ee69d8d6a7fcf5d", key = "w5", layout = "", shape = [48, 16, 1, 3]} : () -> tensor<48x16x1x3xf32>
    %7 = "ai.conv"(%5, %6) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [0, 0], pads_end = [0, 0], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x16x?x40xf32, #ai.dims<["n", "16", "floordiv(h + 1, 2)", "40"]>>, tensor<48x16x1x3xf32>) -> tensor<?x48x?x38xf32, #ai.dims<["n", "48", "floordiv(h + 1, 2)", "38"]>>
    return %7 : tensor<?x48x?x38xf32, #ai.dims<["n", "48", "floordiv(h + 1, 2)", "38"]>>
  }
}
// after choose-convolutions
module {
  func.func @main(%arg0: tensor<?x16x?x80xf32, #ai.dims<["n", "16", "h", "80"]>>) -> tensor<?x48x?x38xf32, #ai.dims<["n", "48", "floordiv(h + 1, 2)", "38"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "8795dbb547416c35", key = "w1", layout = "", shape = [32, 16, 3, 3]} : () -> tensor<32x16x3x3xf32>
    %1 = "ai.constant"() {dtype = "float32", fingerprint = "f28840ed4cc61280", key = "w2", layout = "", shape = [32]} : () -> tensor<32xf32>
    %2 = "ai.winograd_weights"(%0) {out_layout = "", strides = [1, 1], tile = [4, 4]} : (tensor<32x16x3x3xf32>) -> tensor<32x36x16xf32>
    %3 = "ai.conv_winograd"(%arg0, %2, %1) {out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1], tile = [4, 4]} : (tensor<?x16x?x80xf32, #ai.dims<["n", "16", "h", "80"]>>, tensor<32x36x16xf32>, tensor<32xf32>) -> tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>
    %4 = "ai.relu"(%3) : (tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>) -> tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>
    %5 = "ai.constant"() {dtype = "float32", fingerprint = "1e9f233b45311be8", key = "w4", layout = "", shape = [16, 32, 3, 3]} : () -> tensor<16x32x3x3xf32>
    %6 = "ai.conv"(%4, %5) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [2, 2]} : (tensor<?x32x?x80xf32, #ai.dims<["n", "32", "h", "80"]>>, tensor<16x32x3x3xf32>) -> tensor<?x16x?x40xf32, #ai.dims<["n", "16", "floordiv(h + 1, 2)", "40"]>>
    %7 = "ai.constant"() {dtype = "float32", fingerprint = "1ee69d8d6a7fcf5d", key = "w5", layout = "", shape = [48, 16, 1, 3]} : () -> tensor<48x16x1x3xf32>
    %8 = "ai.winograd_weights"(%7) {out_layout = "", strides = [1, 1], tile = [1, 4]} : (tensor<48x16x1x3xf32>) -> tensor<48x6x16xf32>
    %9 = "ai.conv_winograd"(%6, %8) {out_layout = "", pads_begin = [0, 0], pads_end = [0, 0], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1], tile = [1, 4]} : (tensor<?x16x?x40xf32, #ai.dims<["n", "16", "floordiv(h + 1, 2)", "40"]>>, tensor<48x6x16xf32>) -> tensor<?x48x?x38xf32, #ai.dims<["n", "48", "floordiv(h + 1, 2)", "38"]>>
    return %9 : tensor<?x48x?x38xf32, #ai.dims<["n", "48", "floordiv(h + 1, 2)", "38"]>>
  }
}
