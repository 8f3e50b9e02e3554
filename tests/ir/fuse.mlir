// before fuse
module {
  func.func @main(%arg0: tensor<?x3x4x4xf32, #ai.dims<["n", "3", "4", "4"]>>, %arg1: tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> (tensor<?xf32, #ai.dims<["n"]>>, tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) attributes {input_names = ["x", "r"], output_names = ["y0", "y1"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "03a89eae09de95f4", key = "w1", layout = "", shape = [4, 3, 1, 1]} : () -> tensor<4x3x1x1xf32>
    %1 = "ai.conv"(%arg0, %0) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [0, 0], pads_end = [0, 0], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x3x4x4xf32, #ai.dims<["n", "3", "4", "4"]>>, tensor<4x3x1x1xf32>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
    %2 = "ai.elemwise_add"(%1, %arg1) {broadcast = true, rounding = "rtne"} : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>, tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
    %3 = "ai.relu"(%2) : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
    %4 = "ai.reshape"(%3) {shape = [#ai.dims<["n"]>, 64]} : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x64xf32, #ai.dims<["n", "64"]>>
    %5 = "ai.full"() {dtype = "float32", shape = [], value = 1.250000e-01 : f64} : () -> tensor<f32>
    %6 = "ai.elemwise_mul"(%4, %5) {broadcast = true, rounding = "rtne"} : (tensor<?x64xf32, #ai.dims<["n", "64"]>>, tensor<f32>) -> tensor<?x64xf32, #ai.dims<["n", "64"]>>
    %7 = "ai.softmax"(%6) {axis = 1 : i64} : (tensor<?x64xf32, #ai.dims<["n", "64"]>>) -> tensor<?x64xf32, #ai.dims<["n", "64"]>>
    %8 = "ai.reduce_sum"(%7) {axes = [1], keepdims = false} : (tensor<?x64xf32, #ai.dims<["n", "64"]>>) -> tensor<?xf32, #ai.dims<["n"]>>
    %9 = "ai.sigmoid"(%3) : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
    return %8, %9 : tensor<?xf32, #ai.dims<["n"]>>, tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
  }
}
// after fuse
module {
  func.func @main(%arg0: tensor<?x3x4x4xf32, #ai.dims<["n", "3", "4", "4"]>>, %arg1: tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> (tensor<?xf32, #ai.dims<["n"]>>, tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) attributes {input_names = ["x", "r"], output_names = ["y0", "y1"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "03a89eae09de95f4", key = "w1", layout = "", shape = [4, 3, 1, 1]} : () -> tensor<4x3x1x1xf32>
    %1 = "ai.fusion"() ({
      %6 = "ai.conv"(%arg0, %0) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [0, 0], pads_end = [0, 0], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x3x4x4xf32, #ai.dims<["n", "3", "4", "4"]>>, tensor<4x3x1x1xf32>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
      %7 = "ai.elemwise_add"(%6, %arg1) {broadcast = true, rounding = "rtne"} : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>, tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
      %8 = "ai.relu"(%7) : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
      "ai.yield"(%8) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> ()
    }) {kind = "conv", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, rule = "conv"} : () -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
    %2 = "ai.reshape"(%1) {shape = [#ai.dims<["n"]>, 64]} : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x64xf32, #ai.dims<["n", "64"]>>
    %3 = "ai.fusion"() ({
      %6 = "ai.full"() {dtype = "float32", shape = [], value = 1.250000e-01 : f64} : () -> tensor<f32>
      %7 = "ai.elemwise_mul"(%2, %6) {broadcast = true, rounding = "rtne"} : (tensor<?x64xf32, #ai.dims<["n", "64"]>>, tensor<f32>) -> tensor<?x64xf32, #ai.dims<["n", "64"]>>
      %8 = "ai.softmax"(%7) {axis = 1 : i64} : (tensor<?x64xf32, #ai.dims<["n", "64"]>>) -> tensor<?x64xf32, #ai.dims<["n", "64"]>>
      "ai.yield"(%8) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x64xf32, #ai.dims<["n", "64"]>>) -> ()
    }) {kind = "rows", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, rule = "rows"} : () -> tensor<?x64xf32, #ai.dims<["n", "64"]>>
    %4 = "ai.fusion"() ({
      %6 = "ai.reduce_sum"(%3) {axes = [1], keepdims = false} : (tensor<?x64xf32, #ai.dims<["n", "64"]>>) -> tensor<?xf32, #ai.dims<["n"]>>
      "ai.yield"(%6) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?xf32, #ai.dims<["n"]>>) -> ()
    }) {kind = "reduction", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, rule = "reduction"} : () -> tensor<?xf32, #ai.dims<["n"]>>
    %5 = "ai.fusion"() ({
      %6 = "ai.sigmoid"(%1) : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
      "ai.yield"(%6) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>) -> ()
    }) {kind = "elementwise", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, rule = "elementwise"} : () -> tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
    return %4, %5 : tensor<?xf32, #ai.dims<["n"]>>, tensor<?x4x4x4xf32, #ai.dims<["n", "4", "4", "4"]>>
  }
}
