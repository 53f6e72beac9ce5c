define dso_local void @fused_float32_1d_2edfe035(ptr %args, i64 %begin, i64 %end, ptr %scratch) #0 align 64 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = getelementptr i8, ptr %args, i64 16
  %v5 = load i64, ptr %v4, align 8
  %v6 = getelementptr i8, ptr %args, i64 24
  %v7 = load i64, ptr %v6, align 8
  br label %loop8.head
loop8.head:
  %loop8.i = phi i64 [%begin, %entry], [%v75, %loop62.done]
  %v9 = icmp slt i64 %loop8.i, %end
  br i1 %v9, label %loop8.body, label %loop8.done
loop8.body:
  %v10 = udiv i64 %loop8.i, %v7
  %v11 = mul i64 %v10, %v7
  %v12 = sub i64 %loop8.i, %v11
  %v13 = mul i64 %v12, 8192
  %v14 = sub i64 %v5, %v13
  %v15 = icmp slt i64 %v14, 8192
  %v16 = select i1 %v15, i64 %v14, i64 8192
  %v17 = mul i64 %v13, 4
  %v18 = getelementptr i8, ptr %v1, i64 %v17
  %v19 = mul i64 %v13, 4
  %v20 = getelementptr i8, ptr %v3, i64 %v19
  %v21 = and i64 %v16, -16
  br label %loop22.head
loop22.head:
  %loop22.i = phi i64 [0, %loop8.body], [%v51, %loop22.body]
  %v23 = icmp slt i64 %loop22.i, %v21
  br i1 %v23, label %loop22.body, label %loop22.done
loop22.body:
  %v24 = mul i64 %loop22.i, 4
  %v25 = getelementptr i8, ptr %v18, i64 %v24
  %v26 = load <4 x float>, ptr %v25, align 4
  %v27 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %v26)
  %v28 = mul i64 %loop22.i, 4
  %v29 = getelementptr i8, ptr %v20, i64 %v28
  store <4 x float> %v27, ptr %v29, align 4
  %v30 = add i64 %loop22.i, 4
  %v31 = mul i64 %v30, 4
  %v32 = getelementptr i8, ptr %v18, i64 %v31
  %v33 = load <4 x float>, ptr %v32, align 4
  %v34 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %v33)
  %v35 = mul i64 %v30, 4
  %v36 = getelementptr i8, ptr %v20, i64 %v35
  store <4 x float> %v34, ptr %v36, align 4
  %v37 = add i64 %loop22.i, 8
  %v38 = mul i64 %v37, 4
  %v39 = getelementptr i8, ptr %v18, i64 %v38
  %v40 = load <4 x float>, ptr %v39, align 4
  %v41 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %v40)
  %v42 = mul i64 %v37, 4
  %v43 = getelementptr i8, ptr %v20, i64 %v42
  store <4 x float> %v41, ptr %v43, align 4
  %v44 = add i64 %loop22.i, 12
  %v45 = mul i64 %v44, 4
  %v46 = getelementptr i8, ptr %v18, i64 %v45
  %v47 = load <4 x float>, ptr %v46, align 4
  %v48 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %v47)
  %v49 = mul i64 %v44, 4
  %v50 = getelementptr i8, ptr %v20, i64 %v49
  store <4 x float> %v48, ptr %v50, align 4
  %v51 = add nsw i64 %loop22.i, 16
  br label %loop22.head
loop22.done:
  %v52 = and i64 %v16, -4
  br label %loop53.head
loop53.head:
  %loop53.i = phi i64 [%v21, %loop22.done], [%v61, %loop53.body]
  %v54 = icmp slt i64 %loop53.i, %v52
  br i1 %v54, label %loop53.body, label %loop53.done
loop53.body:
  %v55 = mul i64 %loop53.i, 4
  %v56 = getelementptr i8, ptr %v18, i64 %v55
  %v57 = load <4 x float>, ptr %v56, align 4
  %v58 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %v57)
  %v59 = mul i64 %loop53.i, 4
  %v60 = getelementptr i8, ptr %v20, i64 %v59
  store <4 x float> %v58, ptr %v60, align 4
  %v61 = add nsw i64 %loop53.i, 4
  br label %loop53.head
loop53.done:
  br label %loop62.head
loop62.head:
  %loop62.i = phi i64 [%v52, %loop53.done], [%v74, %loop62.body]
  %v63 = icmp slt i64 %loop62.i, %v16
  br i1 %v63, label %loop62.body, label %loop62.done
loop62.body:
  %v64 = sub i64 %v16, %loop62.i
  %v65 = insertelement <4 x i64> poison, i64 %v64, i64 0
  %v66 = shufflevector <4 x i64> %v65, <4 x i64> poison, <4 x i32> zeroinitializer
  %v67 = icmp slt <4 x i64> <i64 0, i64 1, i64 2, i64 3>, %v66
  %v68 = mul i64 %loop62.i, 4
  %v69 = getelementptr i8, ptr %v18, i64 %v68
  %v70 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4 %v69, <4 x i1> %v67, <4 x float> splat (float 0x0000000000000000))
  %v71 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %v70)
  %v72 = mul i64 %loop62.i, 4
  %v73 = getelementptr i8, ptr %v20, i64 %v72
  call void @llvm.masked.store.v4f32.p0(<4 x float> %v71, ptr align 4 %v73, <4 x i1> %v67)
  %v74 = add nsw i64 %loop62.i, 4
  br label %loop62.head
loop62.done:
  %v75 = add nsw i64 %loop8.i, 1
  br label %loop8.head
loop8.done:
  ret void
}

declare <4 x float> @llvm.fabs.v4f32(<4 x float>)
declare <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4, <4 x i1>, <4 x float>)
declare void @llvm.masked.store.v4f32.p0(<4 x float>, ptr align 4, <4 x i1>)
attributes #0 = { noinline nounwind "no-builtins" }
