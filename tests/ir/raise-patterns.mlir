// before raise-patterns
module {
  func.func @main(%arg0: tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, %arg1: tensor<?x1x1x?xf32, #ai.dims<["b", "1", "1", "s"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>> attributes {input_names = ["x", "mask"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "ba8111cb7b4db277", key = "w1", layout = "", shape = [8, 8]} : () -> tensor<8x8xf32>
    %1 = "ai.matmul"(%arg0, %0) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %2 = "ai.constant"() {dtype = "float32", fingerprint = "c6c2ba16575328b2", key = "w3", layout = "", shape = [8]} : () -> tensor<8xf32>
    %3 = "ai.elemwise_add"(%1, %2) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %4 = "ai.reshape"(%3) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 2, 4]} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %5 = "ai.transpose"(%4) {perm = [0, 2, 1, 3]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %6 = "ai.constant"() {dtype = "float32", fingerprint = "66b8fbd92028275c", key = "w7", layout = "", shape = [8, 8]} : () -> tensor<8x8xf32>
    %7 = "ai.matmul"(%arg0, %6) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %8 = "ai.constant"() {dtype = "float32", fingerprint = "91792ec95d85b469", key = "w9", layout = "", shape = [8]} : () -> tensor<8xf32>
    %9 = "ai.elemwise_add"(%7, %8) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %10 = "ai.reshape"(%9) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 2, 4]} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %11 = "ai.constant"() {dtype = "float32", fingerprint = "870db5421945e0fe", key = "w13", layout = "", shape = [8, 8]} : () -> tensor<8x8xf32>
    %12 = "ai.matmul"(%arg0, %11) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %13 = "ai.constant"() {dtype = "float32", fingerprint = "7794d4b1d6dc7a4d", key = "w15", layout = "", shape = [8]} : () -> tensor<8xf32>
    %14 = "ai.elemwise_add"(%12, %13) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %15 = "ai.reshape"(%14) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 2, 4]} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %16 = "ai.transpose"(%15) {perm = [0, 2, 1, 3]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %17 = "ai.transpose"(%10) {perm = [0, 2, 3, 1]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x2x4x?xf32, #ai.dims<["b", "2", "4", "s"]>>
    %18 = "ai.matmul"(%5, %17) {transpose_a = false, transpose_b = false} : (tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>, tensor<?x2x4x?xf32, #ai.dims<["b", "2", "4", "s"]>>) -> tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>
    %19 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
    %20 = "ai.elemwise_mul"(%18, %19) {broadcast = true, rounding = "rtne"} : (tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>, tensor<f32>) -> tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>
    %21 = "ai.elemwise_add"(%20, %arg1) {broadcast = true, rounding = "rtne"} : (tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>, tensor<?x1x1x?xf32, #ai.dims<["b", "1", "1", "s"]>>) -> tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>
    %22 = "ai.softmax"(%21) {axis = 3 : i64} : (tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>) -> tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>
    %23 = "ai.is_nan"(%22) : (tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>) -> tensor<?x2x?x?xi1, #ai.dims<["b", "2", "s", "s"]>>
    %24 = "ai.full"() {dtype = "float32", shape = [], value = 0.000000e+00 : f64} : () -> tensor<f32>
    %25 = "ai.where"(%23, %24, %22) : (tensor<?x2x?x?xi1, #ai.dims<["b", "2", "s", "s"]>>, tensor<f32>, tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>) -> tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>
    %26 = "ai.matmul"(%25, %16) {transpose_a = false, transpose_b = false} : (tensor<?x2x?x?xf32, #ai.dims<["b", "2", "s", "s"]>>, tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %27 = "ai.transpose"(%26) {perm = [0, 2, 1, 3]} : (tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %28 = "ai.reshape"(%27) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 8]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %29 = "ai.constant"() {dtype = "float32", fingerprint = "eaed290531c7cdc6", key = "w28", layout = "", shape = [8, 8]} : () -> tensor<8x8xf32>
    %30 = "ai.matmul"(%28, %29) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %31 = "ai.constant"() {dtype = "float32", fingerprint = "d66f8176ae3abfb9", key = "w30", layout = "", shape = [8]} : () -> tensor<8xf32>
    %32 = "ai.elemwise_add"(%30, %31) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %33 = "ai.elemwise_add"(%32, %arg0) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %34 = "ai.reduce_mean"(%33) {axes = [2], keepdims = true} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %35 = "ai.elemwise_sub"(%33, %34) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %36 = "ai.elemwise_mul"(%35, %35) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %37 = "ai.reduce_mean"(%36) {axes = [2], keepdims = true} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %38 = "ai.full"() {dtype = "float32", shape = [], value = 1.000000e-05 : f64} : () -> tensor<f32>
    %39 = "ai.elemwise_add"(%37, %38) {broadcast = true, rounding = "rtne"} : (tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>, tensor<f32>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %40 = "ai.sqrt"(%39) : (tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %41 = "ai.elemwise_div"(%35, %40) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %42 = "ai.constant"() {dtype = "float32", fingerprint = "657cfda78432e20a", key = "w40", layout = "", shape = [8]} : () -> tensor<8xf32>
    %43 = "ai.elemwise_mul"(%41, %42) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %44 = "ai.constant"() {dtype = "float32", fingerprint = "7dcd1d9817607076", key = "w42", layout = "", shape = [8]} : () -> tensor<8xf32>
    %45 = "ai.elemwise_add"(%43, %44) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %46 = "ai.constant"() {dtype = "float32", fingerprint = "96733baa5b1fa881", key = "w44", layout = "", shape = [8, 32]} : () -> tensor<8x32xf32>
    %47 = "ai.matmul"(%45, %46) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x32xf32>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %48 = "ai.constant"() {dtype = "float32", fingerprint = "1ad586b4e0779c81", key = "w46", layout = "", shape = [32]} : () -> tensor<32xf32>
    %49 = "ai.elemwise_add"(%47, %48) {broadcast = true, rounding = "rtne"} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<32xf32>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %50 = "ai.full"() {dtype = "float32", shape = [], value = 1.4142135623730951 : f64} : () -> tensor<f32>
    %51 = "ai.elemwise_div"(%49, %50) {broadcast = true, rounding = "rtne"} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<f32>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %52 = "ai.erf"(%51) : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %53 = "ai.full"() {dtype = "float32", shape = [], value = 1.000000e+00 : f64} : () -> tensor<f32>
    %54 = "ai.elemwise_add"(%52, %53) {broadcast = true, rounding = "rtne"} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<f32>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %55 = "ai.elemwise_mul"(%49, %54) {broadcast = true, rounding = "rtne"} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %56 = "ai.elemwise_mul"(%55, %19) {broadcast = true, rounding = "rtne"} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<f32>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %57 = "ai.constant"() {dtype = "float32", fingerprint = "665850bc1f421a43", key = "w53", layout = "", shape = [32, 8]} : () -> tensor<32x8xf32>
    %58 = "ai.matmul"(%56, %57) {transpose_a = false, transpose_b = false} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<32x8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %59 = "ai.constant"() {dtype = "float32", fingerprint = "fd8c38d72a62e0d0", key = "w55", layout = "", shape = [8]} : () -> tensor<8xf32>
    %60 = "ai.elemwise_add"(%58, %59) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %61 = "ai.elemwise_add"(%60, %45) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %62 = "ai.reduce_mean"(%61) {axes = [2], keepdims = true} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %63 = "ai.elemwise_sub"(%61, %62) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %64 = "ai.elemwise_mul"(%63, %63) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %65 = "ai.reduce_mean"(%64) {axes = [2], keepdims = true} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %66 = "ai.elemwise_add"(%65, %38) {broadcast = true, rounding = "rtne"} : (tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>, tensor<f32>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %67 = "ai.sqrt"(%66) : (tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>) -> tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>
    %68 = "ai.elemwise_div"(%63, %67) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x1xf32, #ai.dims<["b", "s", "1"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %69 = "ai.constant"() {dtype = "float32", fingerprint = "5622441429f09c9e", key = "w65", layout = "", shape = [8]} : () -> tensor<8xf32>
    %70 = "ai.elemwise_mul"(%68, %69) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %71 = "ai.constant"() {dtype = "float32", fingerprint = "5c195e599bed463b", key = "w67", layout = "", shape = [8]} : () -> tensor<8xf32>
    %72 = "ai.elemwise_add"(%70, %71) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    return %72 : tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
  }
}
// after raise-patterns
module {
  func.func @main(%arg0: tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, %arg1: tensor<?x1x1x?xf32, #ai.dims<["b", "1", "1", "s"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>> attributes {input_names = ["x", "mask"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "289ce87a4a952858", key = "w1+w7+w13", layout = "", shape = [8, 24]} : () -> tensor<8x24xf32>
    %1 = "ai.matmul"(%arg0, %0) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x24xf32>) -> tensor<?x?x24xf32, #ai.dims<["b", "s", "24"]>>
    %2 = "ai.constant"() {dtype = "float32", fingerprint = "8e2ac228ca084941", key = "w3+w9+w15", layout = "", shape = [24]} : () -> tensor<24xf32>
    %3 = "ai.elemwise_add"(%1, %2) {broadcast = true, rounding = "rtne"} : (tensor<?x?x24xf32, #ai.dims<["b", "s", "24"]>>, tensor<24xf32>) -> tensor<?x?x24xf32, #ai.dims<["b", "s", "24"]>>
    %4 = "ai.slice"(%3) {sizes = [#ai.dims<["b"]>, #ai.dims<["s"]>, 8], starts = [0, 0, 0], steps = [1, 1, 1]} : (tensor<?x?x24xf32, #ai.dims<["b", "s", "24"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %5 = "ai.slice"(%3) {sizes = [#ai.dims<["b"]>, #ai.dims<["s"]>, 8], starts = [0, 0, 8], steps = [1, 1, 1]} : (tensor<?x?x24xf32, #ai.dims<["b", "s", "24"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %6 = "ai.slice"(%3) {sizes = [#ai.dims<["b"]>, #ai.dims<["s"]>, 8], starts = [0, 0, 16], steps = [1, 1, 1]} : (tensor<?x?x24xf32, #ai.dims<["b", "s", "24"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %7 = "ai.reshape"(%4) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 2, 4]} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %8 = "ai.transpose"(%7) {perm = [0, 2, 1, 3]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %9 = "ai.reshape"(%5) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 2, 4]} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %10 = "ai.reshape"(%6) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 2, 4]} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %11 = "ai.transpose"(%10) {perm = [0, 2, 1, 3]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %12 = "ai.transpose"(%9) {perm = [0, 2, 3, 1]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x2x4x?xf32, #ai.dims<["b", "2", "4", "s"]>>
    %13 = "ai.transpose"(%12) {perm = [0, 1, 3, 2]} : (tensor<?x2x4x?xf32, #ai.dims<["b", "2", "4", "s"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %14 = "ai.attention"(%8, %13, %11, %arg1) {causal = false, narrow = false, scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>, tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>, tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>, tensor<?x1x1x?xf32, #ai.dims<["b", "1", "1", "s"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %15 = "ai.full"() {dtype = "float32", shape = [], value = 0.000000e+00 : f64} : () -> tensor<f32>
    %16 = "ai.is_nan"(%14) : (tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>) -> tensor<?x2x?x4xi1, #ai.dims<["b", "2", "s", "4"]>>
    %17 = "ai.where"(%16, %15, %14) : (tensor<?x2x?x4xi1, #ai.dims<["b", "2", "s", "4"]>>, tensor<f32>, tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>) -> tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>
    %18 = "ai.transpose"(%17) {perm = [0, 2, 1, 3]} : (tensor<?x2x?x4xf32, #ai.dims<["b", "2", "s", "4"]>>) -> tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>
    %19 = "ai.reshape"(%18) {shape = [#ai.dims<["b"]>, #ai.dims<["s"]>, 8]} : (tensor<?x?x2x4xf32, #ai.dims<["b", "s", "2", "4"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %20 = "ai.constant"() {dtype = "float32", fingerprint = "eaed290531c7cdc6", key = "w28", layout = "", shape = [8, 8]} : () -> tensor<8x8xf32>
    %21 = "ai.matmul"(%19, %20) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %22 = "ai.constant"() {dtype = "float32", fingerprint = "d66f8176ae3abfb9", key = "w30", layout = "", shape = [8]} : () -> tensor<8xf32>
    %23 = "ai.elemwise_add"(%21, %22) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %24 = "ai.elemwise_add"(%23, %arg0) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %25 = "ai.constant"() {dtype = "float32", fingerprint = "657cfda78432e20a", key = "w40", layout = "", shape = [8]} : () -> tensor<8xf32>
    %26 = "ai.constant"() {dtype = "float32", fingerprint = "7dcd1d9817607076", key = "w42", layout = "", shape = [8]} : () -> tensor<8xf32>
    %27 = "ai.layer_norm"(%24, %25, %26) {axis = 2 : i64, eps = 1.000000e-05 : f64} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %28 = "ai.constant"() {dtype = "float32", fingerprint = "96733baa5b1fa881", key = "w44", layout = "", shape = [8, 32]} : () -> tensor<8x32xf32>
    %29 = "ai.matmul"(%27, %28) {transpose_a = false, transpose_b = false} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8x32xf32>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %30 = "ai.constant"() {dtype = "float32", fingerprint = "1ad586b4e0779c81", key = "w46", layout = "", shape = [32]} : () -> tensor<32xf32>
    %31 = "ai.elemwise_add"(%29, %30) {broadcast = true, rounding = "rtne"} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<32xf32>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %32 = "ai.gelu"(%31) {approximate = "none"} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>) -> tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>
    %33 = "ai.constant"() {dtype = "float32", fingerprint = "665850bc1f421a43", key = "w53", layout = "", shape = [32, 8]} : () -> tensor<32x8xf32>
    %34 = "ai.matmul"(%32, %33) {transpose_a = false, transpose_b = false} : (tensor<?x?x32xf32, #ai.dims<["b", "s", "32"]>>, tensor<32x8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %35 = "ai.constant"() {dtype = "float32", fingerprint = "fd8c38d72a62e0d0", key = "w55", layout = "", shape = [8]} : () -> tensor<8xf32>
    %36 = "ai.elemwise_add"(%34, %35) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %37 = "ai.elemwise_add"(%36, %27) {broadcast = true, rounding = "rtne"} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    %38 = "ai.constant"() {dtype = "float32", fingerprint = "5622441429f09c9e", key = "w65", layout = "", shape = [8]} : () -> tensor<8xf32>
    %39 = "ai.constant"() {dtype = "float32", fingerprint = "5c195e599bed463b", key = "w67", layout = "", shape = [8]} : () -> tensor<8xf32>
    %40 = "ai.layer_norm"(%37, %38, %39) {axis = 2 : i64, eps = 1.000000e-05 : f64} : (tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>, tensor<8xf32>, tensor<8xf32>) -> tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
    return %40 : tensor<?x?x8xf32, #ai.dims<["b", "s", "8"]>>
  }
}
