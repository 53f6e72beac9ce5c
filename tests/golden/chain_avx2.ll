define dso_local void @fused_float32_2d_465e41e6(ptr %args, i64 %begin, i64 %end, ptr %scratch) #0 align 64 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = getelementptr i8, ptr %args, i64 16
  %v5 = load ptr, ptr %v4, align 8
  %v6 = getelementptr i8, ptr %args, i64 24
  %v7 = load i64, ptr %v6, align 8
  %v8 = getelementptr i8, ptr %args, i64 32
  %v9 = load i64, ptr %v8, align 8
  %v10 = getelementptr i8, ptr %args, i64 40
  %v11 = load i64, ptr %v10, align 8
  %v12 = getelementptr i8, ptr %args, i64 48
  %v13 = load i64, ptr %v12, align 8
  %v14 = getelementptr i8, ptr %args, i64 56
  %v15 = load i64, ptr %v14, align 8
  br label %loop16.head
loop16.head:
  %loop16.i = phi i64 [%begin, %entry], [%v73, %loop25.done]
  %v17 = icmp slt i64 %loop16.i, %end
  br i1 %v17, label %loop16.body, label %loop16.done
loop16.body:
  %v18 = udiv i64 %loop16.i, %v11
  %v19 = mul i64 %v18, %v11
  %v20 = sub i64 %loop16.i, %v19
  %v21 = mul i64 %v20, %v9
  %v22 = add i64 %v21, %v9
  %v23 = icmp slt i64 %v22, %v7
  %v24 = select i1 %v23, i64 %v22, i64 %v7
  br label %loop25.head
loop25.head:
  %loop25.i = phi i64 [%v21, %loop16.body], [%v72, %loop25.body]
  %v26 = icmp slt i64 %loop25.i, %v24
  br i1 %v26, label %loop25.body, label %loop25.done
loop25.body:
  %v27 = mul i64 %loop25.i, %v13
  %v28 = getelementptr i8, ptr %v1, i64 %v27
  %v29 = mul i64 %loop25.i, %v15
  %v30 = getelementptr i8, ptr %v5, i64 %v29
  %v31 = insertelement <8 x i64> poison, i64 5, i64 0
  %v32 = shufflevector <8 x i64> %v31, <8 x i64> poison, <8 x i32> zeroinitializer
  %v33 = icmp slt <8 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>, %v32
  %v34 = mul i64 0, 4
  %v35 = getelementptr i8, ptr %v28, i64 %v34
  %v36 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %v35, <8 x i1> %v33, <8 x float> splat (float 0x0000000000000000))
  %v37 = mul i64 0, 4
  %v38 = getelementptr i8, ptr %v3, i64 %v37
  %v39 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %v38, <8 x i1> %v33, <8 x float> splat (float 0x0000000000000000))
  %v40 = fsub <8 x float> %v36, %v39
  %v41 = fcmp ogt <8 x float> %v40, splat (float 0x4056400000000000)
  %v42 = select <8 x i1> %v41, <8 x float> splat (float 0x4056400000000000), <8 x float> %v40
  %v43 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v42, <8 x float> splat (float 0x3FF7154760000000), <8 x float> splat (float 0x4168000000000000))
  %v44 = fsub <8 x float> %v43, splat (float 0x4168000000000000)
  %v45 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v44, <8 x float> splat (float 0xBFE6300000000000), <8 x float> %v42)
  %v46 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v44, <8 x float> splat (float 0x3F2BD01060000000), <8 x float> %v45)
  %v47 = bitcast <8 x float> %v43 to <8 x i32>
  %v48 = bitcast <8 x float> splat (float 0x4168000000000000) to <8 x i32>
  %v49 = sub <8 x i32> %v47, %v48
  %v50 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v46, <8 x float> splat (float 0x3F56A1A6E0000000), <8 x float> splat (float 0x3F8123FC60000000))
  %v51 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v46, <8 x float> %v50, <8 x float> splat (float 0x3FA5559160000000))
  %v52 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v46, <8 x float> %v51, <8 x float> splat (float 0x3FC55548A0000000))
  %v53 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v46, <8 x float> %v52, <8 x float> splat (float 0x3FDFFFFFC0000000))
  %v54 = fmul <8 x float> %v46, %v46
  %v55 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v54, <8 x float> %v53, <8 x float> %v46)
  %v56 = fadd <8 x float> %v55, splat (float 0x3FF0000000000000)
  %v57 = ashr <8 x i32> %v49, splat (i32 1)
  %v58 = add <8 x i32> %v57, splat (i32 127)
  %v59 = shl <8 x i32> %v58, splat (i32 23)
  %v60 = bitcast <8 x i32> %v59 to <8 x float>
  %v61 = fmul <8 x float> %v56, %v60
  %v62 = sub <8 x i32> %v49, %v57
  %v63 = add <8 x i32> %v62, splat (i32 127)
  %v64 = shl <8 x i32> %v63, splat (i32 23)
  %v65 = bitcast <8 x i32> %v64 to <8 x float>
  %v66 = fmul <8 x float> %v61, %v65
  %v67 = fcmp olt <8 x float> %v40, splat (float 0xC05A000000000000)
  %v68 = select <8 x i1> %v67, <8 x float> splat (float 0x0000000000000000), <8 x float> %v66
  %v69 = fadd <8 x float> %v68, %v36
  %v70 = mul i64 0, 4
  %v71 = getelementptr i8, ptr %v30, i64 %v70
  call void @llvm.masked.store.v8f32.p0(<8 x float> %v69, ptr align 4 %v71, <8 x i1> %v33)
  %v72 = add nsw i64 %loop25.i, 1
  br label %loop25.head
loop25.done:
  %v73 = add nsw i64 %loop16.i, 1
  br label %loop16.head
loop16.done:
  ret void
}

declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr align 4, <8 x i1>)
attributes #0 = { noinline nounwind "no-builtins" }
