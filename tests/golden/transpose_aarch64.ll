define internal void @walk(ptr %to, ptr %source, i64 %count, i64 %to_step, i64 %source_step) #0 align 64 {
entry:
  br label %loop1.head
loop1.head:
  %loop1.i = phi i64 [0, %entry], [%v6, %loop1.body]
  %loop1.c0 = phi ptr [%to, %entry], [%v4, %loop1.body]
  %loop1.c1 = phi ptr [%source, %entry], [%v5, %loop1.body]
  %v2 = icmp slt i64 %loop1.i, %count
  br i1 %v2, label %loop1.body, label %loop1.done
loop1.body:
  %v3 = load <4 x i32>, ptr %loop1.c1, align 1
  store <4 x i32> %v3, ptr %loop1.c0, align 1
  %v4 = getelementptr i8, ptr %loop1.c0, i64 %to_step
  %v5 = getelementptr i8, ptr %loop1.c1, i64 %source_step
  %v6 = add nsw i64 %loop1.i, 1
  br label %loop1.head
loop1.done:
  ret void
}

define dso_local void @copy_strided16_r1c(ptr %args, i64 %begin, i64 %end, ptr %scratch) #0 align 64 {
entry:
  %v1 = load ptr, ptr %args, align 8
  %v2 = getelementptr i8, ptr %args, i64 8
  %v3 = load ptr, ptr %v2, align 8
  %v4 = getelementptr i8, ptr %args, i64 16
  %v5 = load i64, ptr %v4, align 8
  %v6 = getelementptr i8, ptr %args, i64 24
  %v7 = load i64, ptr %v6, align 8
  %v8 = getelementptr i8, ptr %args, i64 32
  %v9 = load i64, ptr %v8, align 8
  %v10 = getelementptr i8, ptr %args, i64 40
  %v11 = load i64, ptr %v10, align 8
  %v12 = getelementptr i8, ptr %args, i64 48
  %v13 = load i64, ptr %v12, align 8
  %v14 = getelementptr i8, ptr %args, i64 72
  %v15 = load i64, ptr %v14, align 8
  %v16 = getelementptr i8, ptr %args, i64 56
  %v17 = load i64, ptr %v16, align 8
  %v18 = getelementptr i8, ptr %args, i64 80
  %v19 = load i64, ptr %v18, align 8
  %v20 = getelementptr i8, ptr %args, i64 64
  %v21 = load i64, ptr %v20, align 8
  %v22 = getelementptr i8, ptr %args, i64 88
  %v23 = load i64, ptr %v22, align 8
  %v24 = icmp sgt i64 %v13, 1
  %v25 = select i1 %v24, i64 %v13, i64 1
  %v26 = icmp sgt i64 %v15, 1
  %v27 = select i1 %v26, i64 %v15, i64 1
  %v28 = mul i64 %v27, %v23
  %v29 = sub i64 %v21, %v28
  %v30 = mul i64 %v27, %v19
  %v31 = sub i64 %v17, %v30
  %v32 = icmp eq ptr %v1, %v3
  %v33 = select i1 %v32, i64 %begin, i64 %end
  %v34 = srem i64 %begin, %v27
  %v35 = sdiv i64 %begin, %v27
  %v36 = mul i64 %v34, %v23
  %v37 = getelementptr i8, ptr %v1, i64 %v36
  %v38 = mul i64 %v34, %v19
  %v39 = getelementptr i8, ptr %v3, i64 %v38
  %v40 = mul i64 %v35, %v21
  %v41 = getelementptr i8, ptr %v37, i64 %v40
  %v42 = mul i64 %v35, %v17
  %v43 = getelementptr i8, ptr %v39, i64 %v42
  br label %loop44.head
loop44.head:
  %loop44.i = phi i64 [%begin, %entry], [%v61, %loop44.body]
  %loop44.c0 = phi i64 [%v35, %entry], [%v58, %loop44.body]
  %loop44.c1 = phi i64 [%v34, %entry], [%v52, %loop44.body]
  %loop44.c2 = phi ptr [%v41, %entry], [%v59, %loop44.body]
  %loop44.c3 = phi ptr [%v43, %entry], [%v60, %loop44.body]
  %v45 = icmp slt i64 %loop44.i, %v33
  br i1 %v45, label %loop44.body, label %loop44.done
loop44.body:
  %v46 = mul i64 %loop44.c1, %v11
  %v47 = sub i64 %v5, %v46
  %v48 = icmp slt i64 %v47, %v11
  %v49 = select i1 %v48, i64 %v47, i64 %v11
  call void @walk(ptr %loop44.c2, ptr %loop44.c3, i64 %v49, i64 %v9, i64 %v7)
  %v50 = add i64 %loop44.c1, 1
  %v51 = icmp eq i64 %v50, %v27
  %v52 = select i1 %v51, i64 0, i64 %v50
  %v53 = select i1 %v51, i64 %v29, i64 0
  %v54 = add i64 %v23, %v53
  %v55 = select i1 %v51, i64 %v31, i64 0
  %v56 = add i64 %v19, %v55
  %v57 = zext i1 %v51 to i64
  %v58 = add i64 %loop44.c0, %v57
  %v59 = getelementptr i8, ptr %loop44.c2, i64 %v54
  %v60 = getelementptr i8, ptr %loop44.c3, i64 %v56
  %v61 = add nsw i64 %loop44.i, 1
  br label %loop44.head
loop44.done:
  ret void
}

attributes #0 = { noinline nounwind "no-builtins" }
