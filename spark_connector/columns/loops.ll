; Made by make_loops.py from sources with the sum da20aac6d68ab30c77459d65397225c33a82dc523f4499d2fcadcb3e4bf34877; do not edit.
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
define i32 @scan(ptr %retptr, ptr %excinfo, ptr %arg.p0, i64 %arg.p0_0, ptr %arg.p1, i64 %arg.p1_0, i64 %arg.p1_1, i64 %arg.p2, i64 %arg.p3, ptr %arg.p4, i64 %arg.p4_0, i64 %arg.p4_1, ptr %arg.p5, i64 %arg.p5_0) {
B0.endif.endif.endif.endif:
  %exitcond.not66.i = icmp slt i64 %arg.p1_0, 1
  br i1 %exitcond.not66.i, label %common.ret, label %B58.lr.ph.i

common.ret:
  %storemerge.i = phi i64 [ 0, %B58.endif.i ], [ 0, %B0.endif.endif.endif.endif ], [ 8, %B822.i.i ], [ %failure.12.0.i.i.i, %B328.endif.i.i ], [ 3, %B424.i.i ], [ 2, %B572.i.i ]
  store i64 %storemerge.i, ptr %retptr, align 8
  ret i32 0

B58.lr.ph.i:
  %0 = getelementptr i64, ptr %arg.p4, i64 %arg.p4_1
  %.idx.i.i = shl i64 %arg.p4_1, 4
  %1 = getelementptr i8, ptr %arg.p4, i64 %.idx.i.i
  %.idx714.i.i = shl i64 %arg.p4_1, 6
  %2 = getelementptr i8, ptr %arg.p4, i64 %.idx714.i.i
  %.idx.i.i.i = shl i64 %arg.p4_1, 5
  %3 = getelementptr i8, ptr %arg.p4, i64 %.idx.i.i.i
  %.idx433.i.i.i = mul i64 %arg.p4_1, 24
  %4 = getelementptr i8, ptr %arg.p4, i64 %.idx433.i.i.i
  %.idx434.i.i.i = mul i64 %arg.p4_1, 48
  %5 = getelementptr i8, ptr %arg.p4, i64 %.idx434.i.i.i
  %.idx435.i.i.i = mul i64 %arg.p4_1, 40
  %6 = getelementptr i8, ptr %arg.p4, i64 %.idx435.i.i.i
  %.idx437.i.i.i = mul i64 %arg.p4_1, 56
  %7 = getelementptr i8, ptr %arg.p4, i64 %.idx437.i.i.i
  br label %B58.i

B58.i:
  %.18018967.i = phi i64 [ 0, %B58.lr.ph.i ], [ %.187.i, %B58.endif.i ]
  %sunkaddr = getelementptr i8, ptr %arg.p5, i64 16
  store i64 %.18018967.i, ptr %sunkaddr, align 8
  %.124.i.i = mul i64 %.18018967.i, %arg.p1_1
  %.128.i.i = getelementptr i64, ptr %arg.p1, i64 %.124.i.i
  %.129.i.i = load i64, ptr %.128.i.i, align 8
  %.184.i.i = getelementptr i8, ptr %.128.i.i, i64 8
  %.185.i.i = load i64, ptr %.184.i.i, align 8
  %.240.i.i = getelementptr i8, ptr %.128.i.i, i64 16
  %.241.i.i = load i64, ptr %.240.i.i, align 8
  %.296.i.i = getelementptr i8, ptr %.128.i.i, i64 24
  %.297.i.i = load i64, ptr %.296.i.i, align 8
  %.352.i.i = getelementptr i8, ptr %.128.i.i, i64 32
  %.353.i.i = load i64, ptr %.352.i.i, align 8
  %.408.i.i = getelementptr i8, ptr %.128.i.i, i64 40
  %.409.i.i = load i64, ptr %.408.i.i, align 8
  %.442.i.i = load i64, ptr %arg.p5, align 8
  %.503.i.i = getelementptr i8, ptr %.128.i.i, i64 48
  %.504.i.i = load i64, ptr %.503.i.i, align 8
  %.591741.not.i.i = icmp slt i64 %.504.i.i, 1
  br i1 %.591741.not.i.i, label %B810.i.i, label %B328.i.i.preheader

B328.i.i.preheader:
  br label %B328.i.i

B328.i.i:
  %previous_delta.2.0747.i.i = phi i64 [ %.817.i.i, %B808.i.i ], [ -1, %B328.i.i.preheader ]
  %headers.2.0746.i.i = phi i64 [ %headers.3.1.i.i, %B808.i.i ], [ 0, %B328.i.i.preheader ]
  %row.2.0745.i.i = phi i64 [ %row.3.1.i.i, %B808.i.i ], [ %.442.i.i, %B328.i.i.preheader ]
  %position.2.0744.i.i = phi i64 [ %.95.i.i.i, %B808.i.i ], [ %.129.i.i, %B328.i.i.preheader ]
  %.590733743.i.i = phi i64 [ %.600.i.i, %B808.i.i ], [ %.504.i.i, %B328.i.i.preheader ]
  %.600.i.i = add nsw i64 %.590733743.i.i, -1
  %sunkaddr244 = getelementptr i8, ptr %arg.p5, i64 24
  store i64 %position.2.0744.i.i, ptr %sunkaddr244, align 8
  %.32.i.i.i.i = sub nsw i64 %.185.i.i, %position.2.0744.i.i
  %.33.i.i.i.i = icmp sgt i64 %.32.i.i.i.i, 1
  br i1 %.33.i.i.i.i, label %B82.i.i.i.i, label %B250.i.i.i.i

B82.i.i.i.i:
  %.49.i.i.i.i = icmp slt i64 %position.2.0744.i.i, 0
  %.50.i.i.i.i = select i1 %.49.i.i.i.i, i64 %arg.p0_0, i64 0
  %8 = getelementptr i8, ptr %arg.p0, i64 %position.2.0744.i.i
  %.64.i.i.i.i = getelementptr i8, ptr %8, i64 %.50.i.i.i.i
  %.65.i.i.i.i = load i8, ptr %.64.i.i.i.i, align 1
  %.66.i.i.i.i = zext i8 %.65.i.i.i.i to i64
  %.74.i.i.i.i = add nsw i64 %position.2.0744.i.i, 1
  %.82.i.i.i.i = icmp slt i8 %.65.i.i.i.i, 0
  br i1 %.82.i.i.i.i, label %B146.i.i.i.i, label %B216.i.i.i.i

B146.i.i.i.i:
  %.98.i.i.i.i = icmp slt i64 %position.2.0744.i.i, -1
  %.99.i.i.i.i = select i1 %.98.i.i.i.i, i64 %arg.p0_0, i64 0
  %9 = getelementptr i8, ptr %arg.p0, i64 %.74.i.i.i.i
  %.113.i.i.i.i = getelementptr i8, ptr %9, i64 %.99.i.i.i.i
  %.114.i.i.i.i = load i8, ptr %.113.i.i.i.i, align 1
  %.115.i.i.i.i = zext i8 %.114.i.i.i.i to i64
  %.116.i.i.i.i = shl nuw nsw i64 %.115.i.i.i.i, 7
  %.117.i.i.i.i = add nsw i64 %.66.i.i.i.i, -128
  %.119.i.i.i.i = or i64 %.116.i.i.i.i, %.117.i.i.i.i
  %.125.i.i.i.i = add nsw i64 %position.2.0744.i.i, 2
  br label %B216.i.i.i.i

B216.i.i.i.i:
  %value.5.0.i.i.i.i = phi i64 [ %.119.i.i.i.i, %B146.i.i.i.i ], [ %.66.i.i.i.i, %B82.i.i.i.i ]
  %following.4.0.i.i.i.i = phi i64 [ %.125.i.i.i.i, %B146.i.i.i.i ], [ %.74.i.i.i.i, %B82.i.i.i.i ]
  %.136.i.i.i.i = icmp slt i64 %following.4.0.i.i.i.i, 0
  %.139.i.i.i.i = icmp ugt i64 %value.5.0.i.i.i.i, 16383
  %or.cond.i.i.i.i = select i1 %.136.i.i.i.i, i1 true, i1 %.139.i.i.i.i
  br i1 %or.cond.i.i.i.i, label %B250.i.i.i.i, label %B292.i.i.i.i

B250.i.i.i.i:
  %.32.i.i.i.i.i = icmp sgt i64 %.185.i.i, %position.2.0744.i.i
  br i1 %.32.i.i.i.i.i, label %B50.i.i.i.i.i.preheader, label %B0.endif.i.i.i

B50.i.i.i.i.i.preheader:
  br label %B50.i.i.i.i.i

B50.i.i.i.i.i:
  %position.2.0.i.i.i.i.i = phi i64 [ %.73.i.i.i.i.i, %B356.i.i.i.i.i ], [ %position.2.0744.i.i, %B50.i.i.i.i.i.preheader ]
  %folded.2.0.i.i.i.i.i = phi i64 [ %.108.i.i.i.i.i, %B356.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.preheader ]
  %shift.2.0.i.i.i.i.i = phi i64 [ %.160.i.i.i.i.i, %B356.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.preheader ]
  %.51.i.i.i.i.i = icmp slt i64 %position.2.0.i.i.i.i.i, 0
  %.52.i.i.i.i.i = select i1 %.51.i.i.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i.i.i.i
  %scevgep22.i.i.i.i.i = getelementptr i8, ptr %scevgep.i.i.i.i.i, i64 %position.2.0.i.i.i.i.i
  %.67.i.i.i.i.i = load i8, ptr %scevgep22.i.i.i.i.i, align 1
  %promoted = zext i8 %.67.i.i.i.i.i to i64
  %.73.i.i.i.i.i = add i64 %position.2.0.i.i.i.i.i, 1
  %.80.i.i.i.i.i = icmp eq i64 %shift.2.0.i.i.i.i.i, 63
  %.85.i.i.i.i.i = icmp ugt i8 %.67.i.i.i.i.i, 1
  %or.cond.i.i.i.i.i = select i1 %.80.i.i.i.i.i, i1 %.85.i.i.i.i.i, i1 false
  br i1 %or.cond.i.i.i.i.i, label %B0.endif.i.i.i, label %B138.i.i.i.i.i

B138.i.i.i.i.i:
  %10 = trunc i64 %promoted to i8
  %11 = and i64 %promoted, 127
  %.106.i.i.i.i.i = shl i64 %11, %shift.2.0.i.i.i.i.i
  %.108.i.i.i.i.i = or i64 %.106.i.i.i.i.i, %folded.2.0.i.i.i.i.i
  %.117.i.i.i.i.i = icmp sgt i8 %10, -1
  br i1 %.117.i.i.i.i.i, label %B224.i.i.i.i.i, label %B356.i.i.i.i.i

B224.i.i.i.i.i:
  %.131.i.i.i.i.i = lshr i64 %.108.i.i.i.i.i, 1
  %.133.i.i.i.i.i = and i64 %.108.i.i.i.i.i, 1
  %.136.i.i.i.i.i = sub nsw i64 0, %.133.i.i.i.i.i
  %.137.i.i.i.i.i = xor i64 %.131.i.i.i.i.i, %.136.i.i.i.i.i
  %12 = add i64 %position.2.0.i.i.i.i.i, 1
  br label %B0.endif.i.i.i

B356.i.i.i.i.i:
  %.160.i.i.i.i.i = add nuw nsw i64 %shift.2.0.i.i.i.i.i, 7
  %exitcond.not.i.i.i.i.i = icmp eq i64 %.185.i.i, %.73.i.i.i.i.i
  br i1 %exitcond.not.i.i.i.i.i, label %B0.endif.i.i.i, label %B50.i.i.i.i.i

B292.i.i.i.i:
  %.216.i.i.i.i = lshr i64 %value.5.0.i.i.i.i, 1
  %.218.i.i.i.i = and i64 %value.5.0.i.i.i.i, 1
  %.221.i.i.i.i = sub nsw i64 0, %.218.i.i.i.i
  %.222.i.i.i.i = xor i64 %.216.i.i.i.i, %.221.i.i.i.i
  br label %B0.endif.i.i.i

B82.i41.i.i.i:
  %.138.i.i.i = add nuw nsw i64 %following.5.0.i.i.i.i, 1
  %13 = getelementptr i8, ptr %arg.p0, i64 %.138.i.i.i
  %.65.i45.i.i.i = load i8, ptr %13, align 1
  %.66.i46.i.i.i = zext i8 %.65.i45.i.i.i to i64
  %.74.i47.i.i.i = add nuw i64 %following.5.0.i.i.i.i, 2
  %.82.i48.i.i.i = icmp slt i8 %.65.i45.i.i.i, 0
  br i1 %.82.i48.i.i.i, label %B216.i49.i.i.i, label %B188.endif.thread.i.i.i

B216.i49.i.i.i:
  %sunkaddr.i.i.i = getelementptr i8, ptr %arg.p0, i64 %following.5.0.i.i.i.i
  %sunkaddr532.i.i.i = getelementptr i8, ptr %sunkaddr.i.i.i, i64 2
  %.114.i64.i.i.i = load i8, ptr %sunkaddr532.i.i.i, align 1
  %.115.i65.i.i.i = zext i8 %.114.i64.i.i.i to i64
  %.116.i66.i.i.i = shl nuw nsw i64 %.115.i65.i.i.i, 7
  %.117.i67.i.i.i = add nsw i64 %.66.i46.i.i.i, -128
  %.119.i68.i.i.i = or i64 %.116.i66.i.i.i, %.117.i67.i.i.i
  %.125.i69.i.i.i = add nuw nsw i64 %following.5.0.i.i.i.i, 3
  %.139.i53.i.i.i = icmp ugt i64 %.119.i68.i.i.i, 16383
  br i1 %.139.i53.i.i.i, label %B50.i.preheader.i13.i.i.i, label %B188.endif.thread.i.i.i

B50.i.preheader.i13.i.i.i:
  %14 = sub i64 1, %value.6.0.i.i.i.i
  br label %B50.i.i14.i.i.i

B50.i.i14.i.i.i:
  %lsr.iv = phi i64 [ %lsr.iv.next, %B356.i.i32.i.i.i ], [ 0, %B50.i.preheader.i13.i.i.i ]
  %position.2.0.i.i15.i.i.i = phi i64 [ %.73.i.i24.i.i.i, %B356.i.i32.i.i.i ], [ %.138.i.i.i, %B50.i.preheader.i13.i.i.i ]
  %folded.2.0.i.i16.i.i.i = phi i64 [ %.108.i.i30.i.i.i, %B356.i.i32.i.i.i ], [ 0, %B50.i.preheader.i13.i.i.i ]
  %shift.2.0.i.i17.i.i.i = phi i64 [ %.160.i.i33.i.i.i, %B356.i.i32.i.i.i ], [ 0, %B50.i.preheader.i13.i.i.i ]
  %.51.i.i18.i.i.i = icmp slt i64 %position.2.0.i.i15.i.i.i, 0
  %.52.i.i19.i.i.i = select i1 %.51.i.i18.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i20.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i19.i.i.i
  %scevgep22.i.i21.i.i.i = getelementptr i8, ptr %scevgep.i.i20.i.i.i, i64 %position.2.0.i.i15.i.i.i
  %.67.i.i22.i.i.i = load i8, ptr %scevgep22.i.i21.i.i.i, align 1
  %promoted245 = zext i8 %.67.i.i22.i.i.i to i64
  %.80.i.i25.i.i.i = icmp eq i64 %shift.2.0.i.i17.i.i.i, 63
  %.85.i.i26.i.i.i = icmp ugt i8 %.67.i.i22.i.i.i, 1
  %or.cond.i.i27.i.i.i = select i1 %.80.i.i25.i.i.i, i1 %.85.i.i26.i.i.i, i1 false
  br i1 %or.cond.i.i27.i.i.i, label %B188.endif.i.i.i, label %B138.i.i28.i.i.i

B138.i.i28.i.i.i:
  %15 = trunc i64 %promoted245 to i8
  %16 = and i64 %promoted245, 127
  %.106.i.i29.i.i.i = shl i64 %16, %shift.2.0.i.i17.i.i.i
  %.108.i.i30.i.i.i = or i64 %.106.i.i29.i.i.i, %folded.2.0.i.i16.i.i.i
  %.117.i.i31.i.i.i = icmp sgt i8 %15, -1
  br i1 %.117.i.i31.i.i.i, label %B224.i.i35.i.i.i, label %B356.i.i32.i.i.i

B224.i.i35.i.i.i:
  %.131.i.i36.i.i.i = lshr i64 %.108.i.i30.i.i.i, 1
  %.133.i.i37.i.i.i = and i64 %.108.i.i30.i.i.i, 1
  %.136.i.i38.i.i.i = sub nsw i64 0, %.133.i.i37.i.i.i
  %.137.i.i39.i.i.i = xor i64 %.131.i.i36.i.i.i, %.136.i.i38.i.i.i
  %17 = add i64 %following.5.0.i.i.i.i, 2
  %18 = sub i64 %17, %lsr.iv
  br label %B188.endif.i.i.i

B356.i.i32.i.i.i:
  %.160.i.i33.i.i.i = add nuw nsw i64 %shift.2.0.i.i17.i.i.i, 7
  %.73.i.i24.i.i.i = add i64 %position.2.0.i.i15.i.i.i, 1
  %lsr.iv.next = add nsw i64 %lsr.iv, -1
  %exitcond.not.i.i34.i.i.i = icmp eq i64 %14, %lsr.iv.next
  br i1 %exitcond.not.i.i34.i.i.i, label %B188.endif.i.i.i, label %B50.i.i14.i.i.i

B188.endif.thread.i.i.i:
  %following.4.0.i51334.i.i.i = phi i64 [ %.125.i69.i.i.i, %B216.i49.i.i.i ], [ %.74.i47.i.i.i, %B82.i41.i.i.i ]
  %value.5.0.i50333.i.i.i = phi i64 [ %.119.i68.i.i.i, %B216.i49.i.i.i ], [ %.66.i46.i.i.i, %B82.i41.i.i.i ]
  %.216.i56.i.i.i = lshr i64 %value.5.0.i50333.i.i.i, 1
  %.218.i57.i.i.i = and i64 %value.5.0.i50333.i.i.i, 1
  %.221.i58.i.i.i = sub nsw i64 0, %.218.i57.i.i.i
  %.222.i59.i.i.i = xor i64 %.216.i56.i.i.i, %.221.i58.i.i.i
  %.207376.i.i.i = icmp slt i64 %row.2.0745.i.i, 0
  %.208377.i.i.i = select i1 %.207376.i.i.i, i64 %arg.p4_1, i64 0
  %19 = getelementptr i64, ptr %0, i64 %row.2.0745.i.i
  %.230378.i.i.i = getelementptr i64, ptr %19, i64 %.208377.i.i.i
  store i64 %.222.i59.i.i.i, ptr %.230378.i.i.i, align 8
  br label %B328.i.i.i

B328.i.i.i:
  %.208381.i.i.i = phi i64 [ %.208377.i.i.i, %B188.endif.thread.i.i.i ], [ %.208.i.i.i, %B188.endif.i.i.i ]
  %following.5.0.i11380.i.i.i = phi i64 [ %following.4.0.i51334.i.i.i, %B188.endif.thread.i.i.i ], [ %.sink.i.i9.i.i.i, %B188.endif.i.i.i ]
  %.32.i71.i.i.i = sub nsw i64 %.95.i.i.i, %following.5.0.i11380.i.i.i
  %.33.i72.i.i.i = icmp sgt i64 %.32.i71.i.i.i, 1
  br i1 %.33.i72.i.i.i, label %B82.i111.i.i.i, label %B250.i73.i.i.i

B82.i111.i.i.i:
  %20 = getelementptr i8, ptr %arg.p0, i64 %following.5.0.i11380.i.i.i
  %.65.i115.i.i.i = load i8, ptr %20, align 1
  %.66.i116.i.i.i = zext i8 %.65.i115.i.i.i to i64
  %.74.i117.i.i.i = add nuw nsw i64 %following.5.0.i11380.i.i.i, 1
  %.82.i118.i.i.i = icmp slt i8 %.65.i115.i.i.i, 0
  br i1 %.82.i118.i.i.i, label %B216.i119.i.i.i, label %B328.endif.thread.i.i.i

B216.i119.i.i.i:
  %sunkaddr246 = getelementptr i8, ptr %arg.p0, i64 %following.5.0.i11380.i.i.i
  %sunkaddr247 = getelementptr i8, ptr %sunkaddr246, i64 1
  %.114.i134.i.i.i = load i8, ptr %sunkaddr247, align 1
  %.115.i135.i.i.i = zext i8 %.114.i134.i.i.i to i64
  %.116.i136.i.i.i = shl nuw nsw i64 %.115.i135.i.i.i, 7
  %.117.i137.i.i.i = add nsw i64 %.66.i116.i.i.i, -128
  %.119.i138.i.i.i = or i64 %.116.i136.i.i.i, %.117.i137.i.i.i
  %.125.i139.i.i.i = add nuw nsw i64 %following.5.0.i11380.i.i.i, 2
  %.139.i123.i.i.i = icmp ugt i64 %.119.i138.i.i.i, 16383
  br i1 %.139.i123.i.i.i, label %B250.i73.i.i.i, label %B328.endif.thread.i.i.i

B250.i73.i.i.i:
  %.32.i.i74.i.i.i = icmp sgt i64 %.95.i.i.i, %following.5.0.i11380.i.i.i
  br i1 %.32.i.i74.i.i.i, label %B50.i.i84.i.i.i.preheader, label %B328.endif.thread383.i.i.i

B50.i.i84.i.i.i.preheader:
  br label %B50.i.i84.i.i.i

B50.i.i84.i.i.i:
  %position.2.0.i.i85.i.i.i = phi i64 [ %.73.i.i94.i.i.i, %B356.i.i102.i.i.i ], [ %following.5.0.i11380.i.i.i, %B50.i.i84.i.i.i.preheader ]
  %folded.2.0.i.i86.i.i.i = phi i64 [ %.108.i.i100.i.i.i, %B356.i.i102.i.i.i ], [ 0, %B50.i.i84.i.i.i.preheader ]
  %shift.2.0.i.i87.i.i.i = phi i64 [ %.160.i.i103.i.i.i, %B356.i.i102.i.i.i ], [ 0, %B50.i.i84.i.i.i.preheader ]
  %.51.i.i88.i.i.i = icmp slt i64 %position.2.0.i.i85.i.i.i, 0
  %.52.i.i89.i.i.i = select i1 %.51.i.i88.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i90.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i89.i.i.i
  %scevgep22.i.i91.i.i.i = getelementptr i8, ptr %scevgep.i.i90.i.i.i, i64 %position.2.0.i.i85.i.i.i
  %.67.i.i92.i.i.i = load i8, ptr %scevgep22.i.i91.i.i.i, align 1
  %promoted248 = zext i8 %.67.i.i92.i.i.i to i64
  %.73.i.i94.i.i.i = add i64 %position.2.0.i.i85.i.i.i, 1
  %.80.i.i95.i.i.i = icmp eq i64 %shift.2.0.i.i87.i.i.i, 63
  %.85.i.i96.i.i.i = icmp ugt i8 %.67.i.i92.i.i.i, 1
  %or.cond.i.i97.i.i.i = select i1 %.80.i.i95.i.i.i, i1 %.85.i.i96.i.i.i, i1 false
  br i1 %or.cond.i.i97.i.i.i, label %B328.endif.thread383.i.i.i, label %B138.i.i98.i.i.i

B138.i.i98.i.i.i:
  %21 = trunc i64 %promoted248 to i8
  %22 = and i64 %promoted248, 127
  %.106.i.i99.i.i.i = shl i64 %22, %shift.2.0.i.i87.i.i.i
  %.108.i.i100.i.i.i = or i64 %.106.i.i99.i.i.i, %folded.2.0.i.i86.i.i.i
  %.117.i.i101.i.i.i = icmp sgt i8 %21, -1
  br i1 %.117.i.i101.i.i.i, label %B328.endif.i.i.i, label %B356.i.i102.i.i.i

B356.i.i102.i.i.i:
  %.160.i.i103.i.i.i = add nuw nsw i64 %shift.2.0.i.i87.i.i.i, 7
  %exitcond.not.i.i104.i.i.i = icmp eq i64 %.95.i.i.i, %.73.i.i94.i.i.i
  br i1 %exitcond.not.i.i104.i.i.i, label %B328.endif.thread383.i.i.i, label %B50.i.i84.i.i.i

B328.endif.thread383.i.i.i:
  %23 = getelementptr i64, ptr %arg.p4, i64 %row.2.0745.i.i
  %.360386.i.i.i = getelementptr i64, ptr %23, i64 %.208381.i.i.i
  store i64 0, ptr %.360386.i.i.i, align 8
  br label %B328.endif.i.i

B328.endif.thread.i.i.i:
  %following.4.0.i121339.i.i.i = phi i64 [ %.125.i139.i.i.i, %B216.i119.i.i.i ], [ %.74.i117.i.i.i, %B82.i111.i.i.i ]
  %value.5.0.i120338.i.i.i = phi i64 [ %.119.i138.i.i.i, %B216.i119.i.i.i ], [ %.66.i116.i.i.i, %B82.i111.i.i.i ]
  %.216.i126.i.i.i = lshr i64 %value.5.0.i120338.i.i.i, 1
  %.218.i127.i.i.i = and i64 %value.5.0.i120338.i.i.i, 1
  %.221.i128.i.i.i = sub nsw i64 0, %.218.i127.i.i.i
  %.222.i129.i.i.i = xor i64 %.216.i126.i.i.i, %.221.i128.i.i.i
  %24 = getelementptr i64, ptr %arg.p4, i64 %row.2.0745.i.i
  %.360359.i.i.i = getelementptr i64, ptr %24, i64 %.208381.i.i.i
  store i64 %.222.i129.i.i.i, ptr %.360359.i.i.i, align 8
  br label %B462.i.i.i

B462.i.i.i:
  %following.5.0.i81361.i.i.i = phi i64 [ %following.4.0.i121339.i.i.i, %B328.endif.thread.i.i.i ], [ %48, %B328.endif.i.i.i ]
  %.32.i.i211.i.i.i = sub nsw i64 %.95.i.i.i, %following.5.0.i81361.i.i.i
  %.33.i.i.i.i.i = icmp sgt i64 %.32.i.i211.i.i.i, 1
  br i1 %.33.i.i.i.i.i, label %B82.i.i.i.i.i, label %B250.i.i.i.i.i

B82.i.i.i.i.i:
  %25 = getelementptr i8, ptr %arg.p0, i64 %following.5.0.i81361.i.i.i
  %.65.i.i.i.i.i = load i8, ptr %25, align 1
  %.66.i.i.i.i.i = zext i8 %.65.i.i.i.i.i to i64
  %.74.i.i.i.i.i = add nuw nsw i64 %following.5.0.i81361.i.i.i, 1
  %.82.i.i.i.i.i = icmp slt i8 %.65.i.i.i.i.i, 0
  br i1 %.82.i.i.i.i.i, label %B216.i.i.i.i.i, label %B292.i.i.i.i.i

B216.i.i.i.i.i:
  %sunkaddr249 = getelementptr i8, ptr %arg.p0, i64 %following.5.0.i81361.i.i.i
  %sunkaddr250 = getelementptr i8, ptr %sunkaddr249, i64 1
  %.114.i.i.i.i.i = load i8, ptr %sunkaddr250, align 1
  %.115.i.i.i.i.i = zext i8 %.114.i.i.i.i.i to i64
  %.116.i.i.i.i.i = shl nuw nsw i64 %.115.i.i.i.i.i, 7
  %.117.i.i216.i.i.i = add nsw i64 %.66.i.i.i.i.i, -128
  %.119.i.i.i.i.i = or i64 %.116.i.i.i.i.i, %.117.i.i216.i.i.i
  %.125.i.i.i.i.i = add nuw nsw i64 %following.5.0.i81361.i.i.i, 2
  %.139.i.i.i.i.i = icmp ugt i64 %.119.i.i.i.i.i, 16383
  br i1 %.139.i.i.i.i.i, label %B250.i.i.i.i.i, label %B292.i.i.i.i.i

B250.i.i.i.i.i:
  %.32.i.i.i.i.i.i = icmp sgt i64 %.95.i.i.i, %following.5.0.i81361.i.i.i
  br i1 %.32.i.i.i.i.i.i, label %B50.i.i.i.i.i.i.preheader, label %B462.endif.i.i.i

B50.i.i.i.i.i.i.preheader:
  br label %B50.i.i.i.i.i.i

B50.i.i.i.i.i.i:
  %position.2.0.i.i.i.i.i.i = phi i64 [ %.73.i.i.i.i.i.i, %B356.i.i.i.i.i.i ], [ %following.5.0.i81361.i.i.i, %B50.i.i.i.i.i.i.preheader ]
  %folded.2.0.i.i.i.i.i.i = phi i64 [ %.108.i.i.i.i.i.i, %B356.i.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.i.preheader ]
  %shift.2.0.i.i.i.i.i.i = phi i64 [ %.160.i.i.i.i.i.i, %B356.i.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.i.preheader ]
  %.51.i.i.i.i.i.i = icmp slt i64 %position.2.0.i.i.i.i.i.i, 0
  %.52.i.i.i.i.i.i = select i1 %.51.i.i.i.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i.i.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i.i.i.i.i
  %scevgep22.i.i.i.i.i.i = getelementptr i8, ptr %scevgep.i.i.i.i.i.i, i64 %position.2.0.i.i.i.i.i.i
  %.67.i.i.i.i.i.i = load i8, ptr %scevgep22.i.i.i.i.i.i, align 1
  %promoted251 = zext i8 %.67.i.i.i.i.i.i to i64
  %.73.i.i.i.i.i.i = add i64 %position.2.0.i.i.i.i.i.i, 1
  %.80.i.i.i.i.i.i = icmp eq i64 %shift.2.0.i.i.i.i.i.i, 63
  %.85.i.i.i.i.i.i = icmp ugt i8 %.67.i.i.i.i.i.i, 1
  %or.cond.i.i.i.i.i.i = select i1 %.80.i.i.i.i.i.i, i1 %.85.i.i.i.i.i.i, i1 false
  br i1 %or.cond.i.i.i.i.i.i, label %B462.endif.i.i.i, label %B138.i.i.i.i.i.i

B138.i.i.i.i.i.i:
  %26 = trunc i64 %promoted251 to i8
  %27 = and i64 %promoted251, 127
  %.106.i.i.i.i.i.i = shl i64 %27, %shift.2.0.i.i.i.i.i.i
  %.108.i.i.i.i.i.i = or i64 %.106.i.i.i.i.i.i, %folded.2.0.i.i.i.i.i.i
  %.117.i.i.i.i.i.i = icmp sgt i8 %26, -1
  br i1 %.117.i.i.i.i.i.i, label %B224.i.i.i.i.i.i, label %B356.i.i.i.i.i.i

B224.i.i.i.i.i.i:
  %.131.i.i.i.i.i.i = lshr i64 %.108.i.i.i.i.i.i, 1
  %.133.i.i.i.i.i.i = and i64 %.108.i.i.i.i.i.i, 1
  %.136.i.i.i.i.i.i = sub nsw i64 0, %.133.i.i.i.i.i.i
  %.137.i.i.i.i.i.i = xor i64 %.131.i.i.i.i.i.i, %.136.i.i.i.i.i.i
  %28 = add i64 %position.2.0.i.i.i.i.i.i, 1
  br label %B462.endif.i.i.i

B356.i.i.i.i.i.i:
  %.160.i.i.i.i.i.i = add nuw nsw i64 %shift.2.0.i.i.i.i.i.i, 7
  %exitcond.not.i.i.i.i.i.i = icmp eq i64 %.95.i.i.i, %.73.i.i.i.i.i.i
  br i1 %exitcond.not.i.i.i.i.i.i, label %B462.endif.i.i.i, label %B50.i.i.i.i.i.i

B292.i.i.i.i.i:
  %following.4.0.i.i344.i.i.i = phi i64 [ %.125.i.i.i.i.i, %B216.i.i.i.i.i ], [ %.74.i.i.i.i.i, %B82.i.i.i.i.i ]
  %value.5.0.i.i343.i.i.i = phi i64 [ %.119.i.i.i.i.i, %B216.i.i.i.i.i ], [ %.66.i.i.i.i.i, %B82.i.i.i.i.i ]
  %.216.i.i.i.i.i = lshr i64 %value.5.0.i.i343.i.i.i, 1
  %.218.i.i.i.i.i = and i64 %value.5.0.i.i343.i.i.i, 1
  %.221.i.i.i.i.i = sub nsw i64 0, %.218.i.i.i.i.i
  %.222.i.i.i.i.i = xor i64 %.216.i.i.i.i.i, %.221.i.i.i.i.i
  br label %B462.endif.i.i.i

B618.i.i.i:
  %.32.i.i217.i.i.i = sub nsw i64 %.95.i.i.i, %following.2.0.i.i.i.i
  %.33.i.i218.i.i.i = icmp sgt i64 %.32.i.i217.i.i.i, 1
  br i1 %.33.i.i218.i.i.i, label %B82.i.i267.i.i.i, label %B250.i.i219.i.i.i

B82.i.i267.i.i.i:
  %29 = getelementptr i8, ptr %arg.p0, i64 %following.2.0.i.i.i.i
  %.65.i.i271.i.i.i = load i8, ptr %29, align 1
  %.66.i.i272.i.i.i = zext i8 %.65.i.i271.i.i.i to i64
  %.74.i.i273.i.i.i = add nuw nsw i64 %following.2.0.i.i.i.i, 1
  %.82.i.i274.i.i.i = icmp slt i8 %.65.i.i271.i.i.i, 0
  br i1 %.82.i.i274.i.i.i, label %B216.i.i275.i.i.i, label %B292.i.i281.i.i.i

B216.i.i275.i.i.i:
  %sunkaddr252 = getelementptr i8, ptr %arg.p0, i64 %following.2.0.i.i.i.i
  %sunkaddr253 = getelementptr i8, ptr %sunkaddr252, i64 1
  %.114.i.i290.i.i.i = load i8, ptr %sunkaddr253, align 1
  %.115.i.i291.i.i.i = zext i8 %.114.i.i290.i.i.i to i64
  %.116.i.i292.i.i.i = shl nuw nsw i64 %.115.i.i291.i.i.i, 7
  %.117.i.i293.i.i.i = add nsw i64 %.66.i.i272.i.i.i, -128
  %.119.i.i294.i.i.i = or i64 %.116.i.i292.i.i.i, %.117.i.i293.i.i.i
  %.125.i.i295.i.i.i = add nuw nsw i64 %following.2.0.i.i.i.i, 2
  %.139.i.i279.i.i.i = icmp ugt i64 %.119.i.i294.i.i.i, 16383
  br i1 %.139.i.i279.i.i.i, label %B250.i.i219.i.i.i, label %B292.i.i281.i.i.i

B250.i.i219.i.i.i:
  %.32.i.i.i220.i.i.i = icmp sgt i64 %.95.i.i.i, %following.2.0.i.i.i.i
  br i1 %.32.i.i.i220.i.i.i, label %B50.i.i.i240.i.i.i.preheader, label %B618.endif.i.i.i

B50.i.i.i240.i.i.i.preheader:
  br label %B50.i.i.i240.i.i.i

B50.i.i.i240.i.i.i:
  %position.2.0.i.i.i241.i.i.i = phi i64 [ %.73.i.i.i250.i.i.i, %B356.i.i.i258.i.i.i ], [ %.126.i.i.i.i, %B50.i.i.i240.i.i.i.preheader ]
  %folded.2.0.i.i.i242.i.i.i = phi i64 [ %.108.i.i.i256.i.i.i, %B356.i.i.i258.i.i.i ], [ 0, %B50.i.i.i240.i.i.i.preheader ]
  %shift.2.0.i.i.i243.i.i.i = phi i64 [ %.160.i.i.i259.i.i.i, %B356.i.i.i258.i.i.i ], [ 0, %B50.i.i.i240.i.i.i.preheader ]
  %.51.i.i.i244.i.i.i = icmp slt i64 %position.2.0.i.i.i241.i.i.i, 0
  %.52.i.i.i245.i.i.i = select i1 %.51.i.i.i244.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i.i246.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i.i245.i.i.i
  %scevgep22.i.i.i247.i.i.i = getelementptr i8, ptr %scevgep.i.i.i246.i.i.i, i64 %position.2.0.i.i.i241.i.i.i
  %.67.i.i.i248.i.i.i = load i8, ptr %scevgep22.i.i.i247.i.i.i, align 1
  %promoted254 = zext i8 %.67.i.i.i248.i.i.i to i64
  %.73.i.i.i250.i.i.i = add i64 %position.2.0.i.i.i241.i.i.i, 1
  %.80.i.i.i251.i.i.i = icmp eq i64 %shift.2.0.i.i.i243.i.i.i, 63
  %.85.i.i.i252.i.i.i = icmp ugt i8 %.67.i.i.i248.i.i.i, 1
  %or.cond.i.i.i253.i.i.i = select i1 %.80.i.i.i251.i.i.i, i1 %.85.i.i.i252.i.i.i, i1 false
  br i1 %or.cond.i.i.i253.i.i.i, label %B618.endif.i.i.i, label %B138.i.i.i254.i.i.i

B138.i.i.i254.i.i.i:
  %30 = trunc i64 %promoted254 to i8
  %31 = and i64 %promoted254, 127
  %.106.i.i.i255.i.i.i = shl i64 %31, %shift.2.0.i.i.i243.i.i.i
  %.108.i.i.i256.i.i.i = or i64 %.106.i.i.i255.i.i.i, %folded.2.0.i.i.i242.i.i.i
  %.117.i.i.i257.i.i.i = icmp sgt i8 %30, -1
  br i1 %.117.i.i.i257.i.i.i, label %B224.i.i.i261.i.i.i, label %B356.i.i.i258.i.i.i

B224.i.i.i261.i.i.i:
  %.131.i.i.i262.i.i.i = lshr i64 %.108.i.i.i256.i.i.i, 1
  %.133.i.i.i263.i.i.i = and i64 %.108.i.i.i256.i.i.i, 1
  %.136.i.i.i264.i.i.i = sub nsw i64 0, %.133.i.i.i263.i.i.i
  %.137.i.i.i265.i.i.i = xor i64 %.131.i.i.i262.i.i.i, %.136.i.i.i264.i.i.i
  %32 = add i64 %position.2.0.i.i.i241.i.i.i, 1
  br label %B618.endif.i.i.i

B356.i.i.i258.i.i.i:
  %.160.i.i.i259.i.i.i = add nuw nsw i64 %shift.2.0.i.i.i243.i.i.i, 7
  %exitcond.not.i.i.i260.i.i.i = icmp eq i64 %.95.i.i.i, %.73.i.i.i250.i.i.i
  br i1 %exitcond.not.i.i.i260.i.i.i, label %B618.endif.i.i.i, label %B50.i.i.i240.i.i.i

B292.i.i281.i.i.i:
  %following.4.0.i.i277349.i.i.i = phi i64 [ %.125.i.i295.i.i.i, %B216.i.i275.i.i.i ], [ %.74.i.i273.i.i.i, %B82.i.i267.i.i.i ]
  %value.5.0.i.i276348.i.i.i = phi i64 [ %.119.i.i294.i.i.i, %B216.i.i275.i.i.i ], [ %.66.i.i272.i.i.i, %B82.i.i267.i.i.i ]
  %.216.i.i282.i.i.i = lshr i64 %value.5.0.i.i276348.i.i.i, 1
  %.218.i.i283.i.i.i = and i64 %value.5.0.i.i276348.i.i.i, 1
  %.221.i.i284.i.i.i = sub nsw i64 0, %.218.i.i283.i.i.i
  %.222.i.i285.i.i.i = xor i64 %.216.i.i282.i.i.i, %.221.i.i284.i.i.i
  br label %B618.endif.i.i.i

B774.i.i.i:
  %.32.i141.i.i.i = sub nsw i64 %.95.i.i.i, %following.2.0.i236.i.i.i
  %.33.i142.i.i.i = icmp sgt i64 %.32.i141.i.i.i, 1
  br i1 %.33.i142.i.i.i, label %B82.i181.i.i.i, label %B250.i143.i.i.i

B82.i181.i.i.i:
  %33 = getelementptr i8, ptr %arg.p0, i64 %following.2.0.i236.i.i.i
  %.65.i185.i.i.i = load i8, ptr %33, align 1
  %.66.i186.i.i.i = zext i8 %.65.i185.i.i.i to i64
  %.74.i187.i.i.i = add nuw nsw i64 %following.2.0.i236.i.i.i, 1
  %.82.i188.i.i.i = icmp slt i8 %.65.i185.i.i.i, 0
  br i1 %.82.i188.i.i.i, label %B216.i189.i.i.i, label %B292.i195.i.i.i

B216.i189.i.i.i:
  %sunkaddr255 = getelementptr i8, ptr %arg.p0, i64 %following.2.0.i236.i.i.i
  %sunkaddr256 = getelementptr i8, ptr %sunkaddr255, i64 1
  %.114.i204.i.i.i = load i8, ptr %sunkaddr256, align 1
  %.115.i205.i.i.i = zext i8 %.114.i204.i.i.i to i64
  %.116.i206.i.i.i = shl nuw nsw i64 %.115.i205.i.i.i, 7
  %.117.i207.i.i.i = add nsw i64 %.66.i186.i.i.i, -128
  %.119.i208.i.i.i = or i64 %.116.i206.i.i.i, %.117.i207.i.i.i
  %.125.i209.i.i.i = add nuw nsw i64 %following.2.0.i236.i.i.i, 2
  %.139.i193.i.i.i = icmp ugt i64 %.119.i208.i.i.i, 16383
  br i1 %.139.i193.i.i.i, label %B250.i143.i.i.i, label %B292.i195.i.i.i

B250.i143.i.i.i:
  %.32.i.i144.i.i.i = icmp sgt i64 %.95.i.i.i, %following.2.0.i236.i.i.i
  br i1 %.32.i.i144.i.i.i, label %B50.i.i154.i.i.i.preheader, label %B774.endif.i.i.i

B50.i.i154.i.i.i.preheader:
  br label %B50.i.i154.i.i.i

B50.i.i154.i.i.i:
  %position.2.0.i.i155.i.i.i = phi i64 [ %.73.i.i164.i.i.i, %B356.i.i172.i.i.i ], [ %.126.i235.i.i.i, %B50.i.i154.i.i.i.preheader ]
  %folded.2.0.i.i156.i.i.i = phi i64 [ %.108.i.i170.i.i.i, %B356.i.i172.i.i.i ], [ 0, %B50.i.i154.i.i.i.preheader ]
  %shift.2.0.i.i157.i.i.i = phi i64 [ %.160.i.i173.i.i.i, %B356.i.i172.i.i.i ], [ 0, %B50.i.i154.i.i.i.preheader ]
  %.51.i.i158.i.i.i = icmp slt i64 %position.2.0.i.i155.i.i.i, 0
  %.52.i.i159.i.i.i = select i1 %.51.i.i158.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i160.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i159.i.i.i
  %scevgep22.i.i161.i.i.i = getelementptr i8, ptr %scevgep.i.i160.i.i.i, i64 %position.2.0.i.i155.i.i.i
  %.67.i.i162.i.i.i = load i8, ptr %scevgep22.i.i161.i.i.i, align 1
  %promoted257 = zext i8 %.67.i.i162.i.i.i to i64
  %.73.i.i164.i.i.i = add i64 %position.2.0.i.i155.i.i.i, 1
  %.80.i.i165.i.i.i = icmp eq i64 %shift.2.0.i.i157.i.i.i, 63
  %.85.i.i166.i.i.i = icmp ugt i8 %.67.i.i162.i.i.i, 1
  %or.cond.i.i167.i.i.i = select i1 %.80.i.i165.i.i.i, i1 %.85.i.i166.i.i.i, i1 false
  br i1 %or.cond.i.i167.i.i.i, label %B774.endif.i.i.i, label %B138.i.i168.i.i.i

B138.i.i168.i.i.i:
  %34 = trunc i64 %promoted257 to i8
  %35 = and i64 %promoted257, 127
  %.106.i.i169.i.i.i = shl i64 %35, %shift.2.0.i.i157.i.i.i
  %.108.i.i170.i.i.i = or i64 %.106.i.i169.i.i.i, %folded.2.0.i.i156.i.i.i
  %.117.i.i171.i.i.i = icmp sgt i8 %34, -1
  br i1 %.117.i.i171.i.i.i, label %B224.i.i175.i.i.i, label %B356.i.i172.i.i.i

B224.i.i175.i.i.i:
  %.131.i.i176.i.i.i = lshr i64 %.108.i.i170.i.i.i, 1
  %.133.i.i177.i.i.i = and i64 %.108.i.i170.i.i.i, 1
  %.136.i.i178.i.i.i = sub nsw i64 0, %.133.i.i177.i.i.i
  %.137.i.i179.i.i.i = xor i64 %.131.i.i176.i.i.i, %.136.i.i178.i.i.i
  %36 = add i64 %position.2.0.i.i155.i.i.i, 1
  br label %B774.endif.i.i.i

B356.i.i172.i.i.i:
  %.160.i.i173.i.i.i = add nuw nsw i64 %shift.2.0.i.i157.i.i.i, 7
  %exitcond.not.i.i174.i.i.i = icmp eq i64 %.95.i.i.i, %.73.i.i164.i.i.i
  br i1 %exitcond.not.i.i174.i.i.i, label %B774.endif.i.i.i, label %B50.i.i154.i.i.i

B292.i195.i.i.i:
  %following.4.0.i191354.i.i.i = phi i64 [ %.125.i209.i.i.i, %B216.i189.i.i.i ], [ %.74.i187.i.i.i, %B82.i181.i.i.i ]
  %value.5.0.i190353.i.i.i = phi i64 [ %.119.i208.i.i.i, %B216.i189.i.i.i ], [ %.66.i186.i.i.i, %B82.i181.i.i.i ]
  %.216.i196.i.i.i = lshr i64 %value.5.0.i190353.i.i.i, 1
  %.218.i197.i.i.i = and i64 %value.5.0.i190353.i.i.i, 1
  %.221.i198.i.i.i = sub nsw i64 0, %.218.i197.i.i.i
  %.222.i199.i.i.i = xor i64 %.216.i196.i.i.i, %.221.i198.i.i.i
  br label %B774.endif.i.i.i

B886.i.i.i:
  %.28.i.i.i.i = icmp slt i64 %value.6.0.i150.i.i.i, 0
  br i1 %.28.i.i.i.i, label %B922.i.i.i, label %B16.else.if.i.i.i.i

B110.i.i.i.i:
  %.178169.i.i.i.i = phi i64 [ %.188.i.i.i.i, %B214.endif.i.i.i.i ], [ %value.6.0.i150.i.i.i, %B110.i.i.i.i.preheader ]
  %position.3.0.i.i.i.i = phi i64 [ %.126.i19.i.i.i.i, %B214.endif.i.i.i.i ], [ %following.5.0.i151.i.i.i, %B110.i.i.i.i.preheader ]
  %.179.i.i.i.i = icmp sgt i64 %.178169.i.i.i.i, 0
  br i1 %.179.i.i.i.i, label %B112.i.i.i.i, label %B922.i.i.i

B112.i.i.i.i:
  %.188.i.i.i.i = add nsw i64 %.178169.i.i.i.i, -1
  %.32.i.i.i299.i.i.i = sub nsw i64 %.95.i.i.i, %position.3.0.i.i.i.i
  %.33.i.i.i.i.i.i = icmp sgt i64 %.32.i.i.i299.i.i.i, 1
  br i1 %.33.i.i.i.i.i.i, label %B82.i.i.i.i.i.i, label %B250.i.i.i.i.i.i

B82.i.i.i.i.i.i:
  %37 = getelementptr i8, ptr %arg.p0, i64 %position.3.0.i.i.i.i
  %.65.i.i.i.i.i.i = load i8, ptr %37, align 1
  %.66.i.i.i.i.i.i = zext i8 %.65.i.i.i.i.i.i to i64
  %.74.i.i.i.i.i.i = add nuw nsw i64 %position.3.0.i.i.i.i, 1
  %.82.i.i.i.i.i.i = icmp slt i8 %.65.i.i.i.i.i.i, 0
  br i1 %.82.i.i.i.i.i.i, label %B216.i.i.i.i.i.i, label %B292.i.i.i.i.i.i

B216.i.i.i.i.i.i:
  %sunkaddr258 = getelementptr i8, ptr %arg.p0, i64 %position.3.0.i.i.i.i
  %sunkaddr259 = getelementptr i8, ptr %sunkaddr258, i64 1
  %.114.i.i.i.i.i.i = load i8, ptr %sunkaddr259, align 1
  %.115.i.i.i.i.i.i = zext i8 %.114.i.i.i.i.i.i to i64
  %.116.i.i.i.i.i.i = shl nuw nsw i64 %.115.i.i.i.i.i.i, 7
  %.117.i.i.i305.i.i.i = add nsw i64 %.66.i.i.i.i.i.i, -128
  %.119.i.i.i.i.i.i = or i64 %.116.i.i.i.i.i.i, %.117.i.i.i305.i.i.i
  %.125.i.i.i.i.i.i = add nuw nsw i64 %position.3.0.i.i.i.i, 2
  %.139.i.i.i.i.i.i = icmp ugt i64 %.119.i.i.i.i.i.i, 16383
  br i1 %.139.i.i.i.i.i.i, label %B250.i.i.i.i.i.i, label %B292.i.i.i.i.i.i

B250.i.i.i.i.i.i:
  %.32.i.i.i.i.i.i.i = icmp sgt i64 %.95.i.i.i, %position.3.0.i.i.i.i
  br i1 %.32.i.i.i.i.i.i.i, label %B50.i.i.i.i.i.i.i.preheader, label %B112.endif.i.i.i.i

B50.i.i.i.i.i.i.i.preheader:
  br label %B50.i.i.i.i.i.i.i

B50.i.i.i.i.i.i.i:
  %position.2.0.i.i.i.i.i.i.i = phi i64 [ %.73.i.i.i.i.i.i.i, %B356.i.i.i.i.i.i.i ], [ %position.3.0.i.i.i.i, %B50.i.i.i.i.i.i.i.preheader ]
  %folded.2.0.i.i.i.i.i.i.i = phi i64 [ %.108.i.i.i.i.i.i.i, %B356.i.i.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.i.i.preheader ]
  %shift.2.0.i.i.i.i.i.i.i = phi i64 [ %.160.i.i.i.i.i.i.i, %B356.i.i.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.i.i.preheader ]
  %.51.i.i.i.i.i.i.i = icmp slt i64 %position.2.0.i.i.i.i.i.i.i, 0
  %.52.i.i.i.i.i.i.i = select i1 %.51.i.i.i.i.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i.i.i.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i.i.i.i.i.i
  %scevgep22.i.i.i.i.i.i.i = getelementptr i8, ptr %scevgep.i.i.i.i.i.i.i, i64 %position.2.0.i.i.i.i.i.i.i
  %.67.i.i.i.i.i.i.i = load i8, ptr %scevgep22.i.i.i.i.i.i.i, align 1
  %promoted260 = zext i8 %.67.i.i.i.i.i.i.i to i64
  %.73.i.i.i.i.i.i.i = add i64 %position.2.0.i.i.i.i.i.i.i, 1
  %.80.i.i.i.i.i.i.i = icmp eq i64 %shift.2.0.i.i.i.i.i.i.i, 63
  %.85.i.i.i.i.i.i.i = icmp ugt i8 %.67.i.i.i.i.i.i.i, 1
  %or.cond.i.i.i.i.i.i.i = select i1 %.80.i.i.i.i.i.i.i, i1 %.85.i.i.i.i.i.i.i, i1 false
  br i1 %or.cond.i.i.i.i.i.i.i, label %B112.endif.i.i.i.i, label %B138.i.i.i.i.i.i.i

B138.i.i.i.i.i.i.i:
  %38 = trunc i64 %promoted260 to i8
  %39 = and i64 %promoted260, 127
  %.106.i.i.i.i.i.i.i = shl i64 %39, %shift.2.0.i.i.i.i.i.i.i
  %.108.i.i.i.i.i.i.i = or i64 %.106.i.i.i.i.i.i.i, %folded.2.0.i.i.i.i.i.i.i
  %.117.i.i.i.i.i.i.i = icmp sgt i8 %38, -1
  br i1 %.117.i.i.i.i.i.i.i, label %B224.i.i.i.i.i.i.i, label %B356.i.i.i.i.i.i.i

B224.i.i.i.i.i.i.i:
  %.131.i.i.i.i.i.i.i = lshr i64 %.108.i.i.i.i.i.i.i, 1
  %.133.i.i.i.i.i.i.i = and i64 %.108.i.i.i.i.i.i.i, 1
  %.136.i.i.i.i.i.i.i = sub nsw i64 0, %.133.i.i.i.i.i.i.i
  %.137.i.i.i.i.i.i.i = xor i64 %.131.i.i.i.i.i.i.i, %.136.i.i.i.i.i.i.i
  %40 = add i64 %position.2.0.i.i.i.i.i.i.i, 1
  br label %B112.endif.i.i.i.i

B356.i.i.i.i.i.i.i:
  %.160.i.i.i.i.i.i.i = add nuw nsw i64 %shift.2.0.i.i.i.i.i.i.i, 7
  %exitcond.not.i.i.i.i.i.i.i = icmp eq i64 %.95.i.i.i, %.73.i.i.i.i.i.i.i
  br i1 %exitcond.not.i.i.i.i.i.i.i, label %B112.endif.i.i.i.i, label %B50.i.i.i.i.i.i.i

B292.i.i.i.i.i.i:
  %following.4.0.i.i.i373.i.i.i = phi i64 [ %.125.i.i.i.i.i.i, %B216.i.i.i.i.i.i ], [ %.74.i.i.i.i.i.i, %B82.i.i.i.i.i.i ]
  %value.5.0.i.i.i372.i.i.i = phi i64 [ %.119.i.i.i.i.i.i, %B216.i.i.i.i.i.i ], [ %.66.i.i.i.i.i.i, %B82.i.i.i.i.i.i ]
  %.216.i.i.i.i.i.i = lshr i64 %value.5.0.i.i.i372.i.i.i, 1
  %.218.i.i.i.i.i.i = and i64 %value.5.0.i.i.i372.i.i.i, 1
  %.221.i.i.i.i.i.i = sub nsw i64 0, %.218.i.i.i.i.i.i
  %.222.i.i.i.i.i.i = xor i64 %.216.i.i.i.i.i.i, %.221.i.i.i.i.i.i
  br label %B112.endif.i.i.i.i

B214.i.i.i.i:
  %.32.i.i1.i.i.i.i = sub nsw i64 %.95.i.i.i, %following.2.0.i.i.i.i.i
  %.33.i.i2.i.i.i.i = icmp sgt i64 %.32.i.i1.i.i.i.i, 1
  br i1 %.33.i.i2.i.i.i.i, label %B82.i.i51.i.i.i.i, label %B250.i.i3.i.i.i.i

B82.i.i51.i.i.i.i:
  %41 = getelementptr i8, ptr %arg.p0, i64 %following.2.0.i.i.i.i.i
  %.65.i.i55.i.i.i.i = load i8, ptr %41, align 1
  %.66.i.i56.i.i.i.i = zext i8 %.65.i.i55.i.i.i.i to i64
  %.74.i.i57.i.i.i.i = add nuw nsw i64 %following.2.0.i.i.i.i.i, 1
  %.82.i.i58.i.i.i.i = icmp slt i8 %.65.i.i55.i.i.i.i, 0
  br i1 %.82.i.i58.i.i.i.i, label %B216.i.i59.i.i.i.i, label %B292.i.i65.i.i.i.i

B216.i.i59.i.i.i.i:
  %sunkaddr261 = getelementptr i8, ptr %arg.p0, i64 %following.2.0.i.i.i.i.i
  %sunkaddr262 = getelementptr i8, ptr %sunkaddr261, i64 1
  %.114.i.i74.i.i.i.i = load i8, ptr %sunkaddr262, align 1
  %.115.i.i75.i.i.i.i = zext i8 %.114.i.i74.i.i.i.i to i64
  %.116.i.i76.i.i.i.i = shl nuw nsw i64 %.115.i.i75.i.i.i.i, 7
  %.117.i.i77.i.i.i.i = add nsw i64 %.66.i.i56.i.i.i.i, -128
  %.119.i.i78.i.i.i.i = or i64 %.116.i.i76.i.i.i.i, %.117.i.i77.i.i.i.i
  %.125.i.i79.i.i.i.i = add nuw nsw i64 %following.2.0.i.i.i.i.i, 2
  %.139.i.i63.i.i.i.i = icmp ugt i64 %.119.i.i78.i.i.i.i, 16383
  br i1 %.139.i.i63.i.i.i.i, label %B250.i.i3.i.i.i.i, label %B292.i.i65.i.i.i.i

B250.i.i3.i.i.i.i:
  %.32.i.i.i4.i.i.i.i = icmp sgt i64 %.95.i.i.i, %following.2.0.i.i.i.i.i
  br i1 %.32.i.i.i4.i.i.i.i, label %B50.i.i.i24.i.i.i.i.preheader, label %B214.endif.i.i.i.i

B50.i.i.i24.i.i.i.i.preheader:
  br label %B50.i.i.i24.i.i.i.i

B50.i.i.i24.i.i.i.i:
  %position.2.0.i.i.i25.i.i.i.i = phi i64 [ %.73.i.i.i34.i.i.i.i, %B356.i.i.i42.i.i.i.i ], [ %.126.i.i.i.i.i, %B50.i.i.i24.i.i.i.i.preheader ]
  %folded.2.0.i.i.i26.i.i.i.i = phi i64 [ %.108.i.i.i40.i.i.i.i, %B356.i.i.i42.i.i.i.i ], [ 0, %B50.i.i.i24.i.i.i.i.preheader ]
  %shift.2.0.i.i.i27.i.i.i.i = phi i64 [ %.160.i.i.i43.i.i.i.i, %B356.i.i.i42.i.i.i.i ], [ 0, %B50.i.i.i24.i.i.i.i.preheader ]
  %.51.i.i.i28.i.i.i.i = icmp slt i64 %position.2.0.i.i.i25.i.i.i.i, 0
  %.52.i.i.i29.i.i.i.i = select i1 %.51.i.i.i28.i.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i.i30.i.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i.i29.i.i.i.i
  %scevgep22.i.i.i31.i.i.i.i = getelementptr i8, ptr %scevgep.i.i.i30.i.i.i.i, i64 %position.2.0.i.i.i25.i.i.i.i
  %.67.i.i.i32.i.i.i.i = load i8, ptr %scevgep22.i.i.i31.i.i.i.i, align 1
  %promoted263 = zext i8 %.67.i.i.i32.i.i.i.i to i64
  %.73.i.i.i34.i.i.i.i = add i64 %position.2.0.i.i.i25.i.i.i.i, 1
  %.80.i.i.i35.i.i.i.i = icmp eq i64 %shift.2.0.i.i.i27.i.i.i.i, 63
  %.85.i.i.i36.i.i.i.i = icmp ugt i8 %.67.i.i.i32.i.i.i.i, 1
  %or.cond.i.i.i37.i.i.i.i = select i1 %.80.i.i.i35.i.i.i.i, i1 %.85.i.i.i36.i.i.i.i, i1 false
  br i1 %or.cond.i.i.i37.i.i.i.i, label %B214.endif.i.i.i.i, label %B138.i.i.i38.i.i.i.i

B138.i.i.i38.i.i.i.i:
  %42 = trunc i64 %promoted263 to i8
  %43 = and i64 %promoted263, 127
  %.106.i.i.i39.i.i.i.i = shl i64 %43, %shift.2.0.i.i.i27.i.i.i.i
  %.108.i.i.i40.i.i.i.i = or i64 %.106.i.i.i39.i.i.i.i, %folded.2.0.i.i.i26.i.i.i.i
  %.117.i.i.i41.i.i.i.i = icmp sgt i8 %42, -1
  br i1 %.117.i.i.i41.i.i.i.i, label %B224.i.i.i45.i.i.i.i, label %B356.i.i.i42.i.i.i.i

B224.i.i.i45.i.i.i.i:
  %.131.i.i.i46.i.i.i.i = lshr i64 %.108.i.i.i40.i.i.i.i, 1
  %.133.i.i.i47.i.i.i.i = and i64 %.108.i.i.i40.i.i.i.i, 1
  %.136.i.i.i48.i.i.i.i = sub nsw i64 0, %.133.i.i.i47.i.i.i.i
  %.137.i.i.i49.i.i.i.i = xor i64 %.131.i.i.i46.i.i.i.i, %.136.i.i.i48.i.i.i.i
  %44 = add i64 %position.2.0.i.i.i25.i.i.i.i, 1
  br label %B214.endif.i.i.i.i

B356.i.i.i42.i.i.i.i:
  %.160.i.i.i43.i.i.i.i = add nuw nsw i64 %shift.2.0.i.i.i27.i.i.i.i, 7
  %exitcond.not.i.i.i44.i.i.i.i = icmp eq i64 %.95.i.i.i, %.73.i.i.i34.i.i.i.i
  br i1 %exitcond.not.i.i.i44.i.i.i.i, label %B214.endif.i.i.i.i, label %B50.i.i.i24.i.i.i.i

B292.i.i65.i.i.i.i:
  %following.4.0.i.i6195.i.i.i.i = phi i64 [ %.125.i.i79.i.i.i.i, %B216.i.i59.i.i.i.i ], [ %.74.i.i57.i.i.i.i, %B82.i.i51.i.i.i.i ]
  %value.5.0.i.i6094.i.i.i.i = phi i64 [ %.119.i.i78.i.i.i.i, %B216.i.i59.i.i.i.i ], [ %.66.i.i56.i.i.i.i, %B82.i.i51.i.i.i.i ]
  %.216.i.i66.i.i.i.i = lshr i64 %value.5.0.i.i6094.i.i.i.i, 1
  %.218.i.i67.i.i.i.i = and i64 %value.5.0.i.i6094.i.i.i.i, 1
  %.221.i.i68.i.i.i.i = sub nsw i64 0, %.218.i.i67.i.i.i.i
  %.222.i.i69.i.i.i.i = xor i64 %.216.i.i66.i.i.i.i, %.221.i.i68.i.i.i.i
  br label %B214.endif.i.i.i.i

B16.else.if.i.i.i.i:
  %.32.i297.i.i.i = sub nsw i64 %.95.i.i.i, %following.5.0.i151.i.i.i
  %.40.1.i.i.i.i = ashr i64 %.32.i297.i.i.i, 1
  %.74.i298.i.i.i = icmp sgt i64 %value.6.0.i150.i.i.i, %.40.1.i.i.i.i
  br i1 %.74.i298.i.i.i, label %B922.i.i.i, label %B110.i.i.i.i.preheader

B110.i.i.i.i.preheader:
  br label %B110.i.i.i.i

B112.endif.i.i.i.i:
  %value.6.0.i.i.i.i.i.i = phi i64 [ %.222.i.i.i.i.i.i, %B292.i.i.i.i.i.i ], [ %.137.i.i.i.i.i.i.i, %B224.i.i.i.i.i.i.i ], [ 0, %B356.i.i.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.i.i ], [ 0, %B250.i.i.i.i.i.i ]
  %following.5.0.i.i.i.i.i.i = phi i64 [ %following.4.0.i.i.i373.i.i.i, %B292.i.i.i.i.i.i ], [ %40, %B224.i.i.i.i.i.i.i ], [ -1, %B356.i.i.i.i.i.i.i ], [ -1, %B50.i.i.i.i.i.i.i ], [ -1, %B250.i.i.i.i.i.i ]
  %.75.i.i.i.i.i = icmp sgt i64 %following.5.0.i.i.i.i.i.i, -1
  %.81.i.i.i.i.i = icmp sgt i64 %value.6.0.i.i.i.i.i.i, -2
  %or.cond.i.i300.i.i.i = select i1 %.75.i.i.i.i.i, i1 %.81.i.i.i.i.i, i1 false
  %.90.i.i.i.i.i = sub nsw i64 %.95.i.i.i, %following.5.0.i.i.i.i.i.i
  %.94.i.i.i.i.i = icmp sle i64 %value.6.0.i.i.i.i.i.i, %.90.i.i.i.i.i
  %or.cond27.i.i.i.i.i = select i1 %or.cond.i.i300.i.i.i, i1 %.94.i.i.i.i.i, i1 false
  %.13.i.i.i.i.i.i = tail call i64 @llvm.smax.i64(i64 %value.6.0.i.i.i.i.i.i, i64 0)
  %.126.i.i.i.i.i = add nuw nsw i64 %.13.i.i.i.i.i.i, %following.5.0.i.i.i.i.i.i
  %following.2.0.i.i.i.i.i = select i1 %or.cond27.i.i.i.i.i, i64 %.126.i.i.i.i.i, i64 -1
  %.268.i.i.i.i = icmp slt i64 %following.2.0.i.i.i.i.i, 0
  %.271.i.i.i.i = icmp slt i64 %value.6.0.i.i.i.i.i.i, 0
  %or.cond.i301.i.i.i = select i1 %.268.i.i.i.i, i1 true, i1 %.271.i.i.i.i
  br i1 %or.cond.i301.i.i.i, label %B922.i.i.i, label %B214.i.i.i.i

B214.endif.i.i.i.i:
  %value.6.0.i.i10.i.i.i.i = phi i64 [ %.222.i.i69.i.i.i.i, %B292.i.i65.i.i.i.i ], [ %.137.i.i.i49.i.i.i.i, %B224.i.i.i45.i.i.i.i ], [ 0, %B356.i.i.i42.i.i.i.i ], [ 0, %B50.i.i.i24.i.i.i.i ], [ 0, %B250.i.i3.i.i.i.i ]
  %following.5.0.i.i11.i.i.i.i = phi i64 [ %following.4.0.i.i6195.i.i.i.i, %B292.i.i65.i.i.i.i ], [ %44, %B224.i.i.i45.i.i.i.i ], [ -1, %B356.i.i.i42.i.i.i.i ], [ -1, %B50.i.i.i24.i.i.i.i ], [ -1, %B250.i.i3.i.i.i.i ]
  %.75.i12.i.i.i.i = icmp slt i64 %following.5.0.i.i11.i.i.i.i, 0
  %.81.i13.i.i.i.i = icmp slt i64 %value.6.0.i.i10.i.i.i.i, -1
  %or.cond.i14.not97.i.i.i.i = select i1 %.75.i12.i.i.i.i, i1 true, i1 %.81.i13.i.i.i.i
  %.90.i15.i.i.i.i = sub nsw i64 %.95.i.i.i, %following.5.0.i.i11.i.i.i.i
  %.94.i16.i.i.i.i = icmp sgt i64 %value.6.0.i.i10.i.i.i.i, %.90.i15.i.i.i.i
  %or.cond27.i17.not.i.i.i.i = select i1 %or.cond.i14.not97.i.i.i.i, i1 true, i1 %.94.i16.i.i.i.i
  %.13.i.i18.i.i.i.i = tail call i64 @llvm.smax.i64(i64 %value.6.0.i.i10.i.i.i.i, i64 0)
  %.126.i19.i.i.i.i = add nuw nsw i64 %.13.i.i18.i.i.i.i, %following.5.0.i.i11.i.i.i.i
  %.33896.i.i.i.i = icmp slt i64 %.126.i19.i.i.i.i, 0
  %.338.i.i.i.i = select i1 %or.cond27.i17.not.i.i.i.i, i1 true, i1 %.33896.i.i.i.i
  br i1 %.338.i.i.i.i, label %B922.i.i.i, label %B110.i.i.i.i

B922.i.i.i:
  %position.11.0.i.i.i = phi i64 [ %following.5.0.i151.i.i.i, %B774.endif.i.i.i ], [ -1, %B886.i.i.i ], [ -1, %B16.else.if.i.i.i.i ], [ %position.3.0.i.i.i.i, %B110.i.i.i.i ], [ -1, %B112.endif.i.i.i.i ], [ -1, %B214.endif.i.i.i.i ]
  %.1013.i.i.i = icmp slt i64 %position.11.0.i.i.i, 0
  br i1 %.1013.i.i.i, label %B328.endif.i.i, label %B976.i.i.i

B976.i.i.i:
  %.1029.not.i.i.i = icmp eq i64 %position.11.0.i.i.i, %.95.i.i.i
  %spec.select = select i1 %.1029.not.i.i.i, i64 0, i64 7
  br label %B328.endif.i.i

B0.endif.i.i.i:
  %value.6.0.i.i.i.i = phi i64 [ %.222.i.i.i.i, %B292.i.i.i.i ], [ %.137.i.i.i.i.i, %B224.i.i.i.i.i ], [ 0, %B356.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i ], [ 0, %B250.i.i.i.i ]
  %following.5.0.i.i.i.i = phi i64 [ %following.4.0.i.i.i.i, %B292.i.i.i.i ], [ %12, %B224.i.i.i.i.i ], [ -1, %B356.i.i.i.i.i ], [ -1, %B50.i.i.i.i.i ], [ -1, %B250.i.i.i.i ]
  %.95.i.i.i = add i64 %following.5.0.i.i.i.i, %value.6.0.i.i.i.i
  %.100.i.i.i = icmp slt i64 %following.5.0.i.i.i.i, 0
  %.103.i.i.i = icmp slt i64 %value.6.0.i.i.i.i, 6
  %or.cond.i.i.i = select i1 %.100.i.i.i, i1 true, i1 %.103.i.i.i
  %.107.i.i.i = sub nsw i64 %.185.i.i, %following.5.0.i.i.i.i
  %.111.i.i.i = icmp sgt i64 %value.6.0.i.i.i.i, %.107.i.i.i
  %or.cond431.i.i.i = select i1 %or.cond.i.i.i, i1 true, i1 %.111.i.i.i
  br i1 %or.cond431.i.i.i, label %B328.endif.i.i, label %B82.i41.i.i.i

B188.endif.i.i.i:
  %.sink92.i.i8.i.i.i = phi i64 [ %.137.i.i39.i.i.i, %B224.i.i35.i.i.i ], [ 0, %B356.i.i32.i.i.i ], [ 0, %B50.i.i14.i.i.i ]
  %.sink.i.i9.i.i.i = phi i64 [ %18, %B224.i.i35.i.i.i ], [ -1, %B356.i.i32.i.i.i ], [ -1, %B50.i.i14.i.i.i ]
  %.207.i.i.i = icmp slt i64 %row.2.0745.i.i, 0
  %.208.i.i.i = select i1 %.207.i.i.i, i64 %arg.p4_1, i64 0
  %45 = getelementptr i64, ptr %0, i64 %row.2.0745.i.i
  %.230.i.i.i = getelementptr i64, ptr %45, i64 %.208.i.i.i
  store i64 %.sink92.i.i8.i.i.i, ptr %.230.i.i.i, align 8
  %.239.i.i.i = icmp slt i64 %.sink.i.i9.i.i.i, 0
  br i1 %.239.i.i.i, label %B328.endif.i.i, label %B328.i.i.i

B328.endif.i.i.i:
  %.131.i.i106.i.i.i = lshr i64 %.108.i.i100.i.i.i, 1
  %.133.i.i107.i.i.i = and i64 %.108.i.i100.i.i.i, 1
  %.136.i.i108.i.i.i = sub nsw i64 0, %.133.i.i107.i.i.i
  %.137.i.i109.i.i.i = xor i64 %.131.i.i106.i.i.i, %.136.i.i108.i.i.i
  %46 = getelementptr i64, ptr %arg.p4, i64 %row.2.0745.i.i
  %.360.i.i.i = getelementptr i64, ptr %46, i64 %.208381.i.i.i
  store i64 %.137.i.i109.i.i.i, ptr %.360.i.i.i, align 8
  %47 = add i64 %position.2.0.i.i85.i.i.i, 1
  %.369.i.i.i = icmp slt i64 %47, 0
  %48 = add i64 %position.2.0.i.i85.i.i.i, 1
  br i1 %.369.i.i.i, label %B328.endif.i.i, label %B462.i.i.i

B462.endif.i.i.i:
  %value.6.0.i.i.i.i.i = phi i64 [ %.222.i.i.i.i.i, %B292.i.i.i.i.i ], [ %.137.i.i.i.i.i.i, %B224.i.i.i.i.i.i ], [ 0, %B356.i.i.i.i.i.i ], [ 0, %B50.i.i.i.i.i.i ], [ 0, %B250.i.i.i.i.i ]
  %following.5.0.i.i.i.i.i = phi i64 [ %following.4.0.i.i344.i.i.i, %B292.i.i.i.i.i ], [ %28, %B224.i.i.i.i.i.i ], [ -1, %B356.i.i.i.i.i.i ], [ -1, %B50.i.i.i.i.i.i ], [ -1, %B250.i.i.i.i.i ]
  %.75.i.i.i.i = icmp sgt i64 %following.5.0.i.i.i.i.i, -1
  %.81.i.i.i.i = icmp sgt i64 %value.6.0.i.i.i.i.i, -2
  %or.cond.i212.i.i.i = select i1 %.75.i.i.i.i, i1 %.81.i.i.i.i, i1 false
  %.90.i.i.i.i = sub nsw i64 %.95.i.i.i, %following.5.0.i.i.i.i.i
  %.94.i.i.i.i = icmp sle i64 %value.6.0.i.i.i.i.i, %.90.i.i.i.i
  %or.cond27.i.i.i.i = select i1 %or.cond.i212.i.i.i, i1 %.94.i.i.i.i, i1 false
  %.13.i.i.i.i.i = tail call i64 @llvm.smax.i64(i64 %value.6.0.i.i.i.i.i, i64 0)
  %.126.i.i.i.i = add nuw nsw i64 %.13.i.i.i.i.i, %following.5.0.i.i.i.i.i
  %following.2.0.i.i.i.i = select i1 %or.cond27.i.i.i.i, i64 %.126.i.i.i.i, i64 -1
  %.477.i.i.i = add i64 %.208381.i.i.i, %row.2.0745.i.i
  %.498.i.i.i = getelementptr i64, ptr %3, i64 %.477.i.i.i
  store i64 %value.6.0.i.i.i.i.i, ptr %.498.i.i.i, align 8
  %.553.i.i.i = getelementptr i64, ptr %4, i64 %.477.i.i.i
  store i64 %following.5.0.i.i.i.i.i, ptr %.553.i.i.i, align 8
  %.562.i.i.i = icmp slt i64 %following.2.0.i.i.i.i, 0
  br i1 %.562.i.i.i, label %B328.endif.i.i, label %B618.i.i.i

B618.endif.i.i.i:
  %value.6.0.i.i226.i.i.i = phi i64 [ %.222.i.i285.i.i.i, %B292.i.i281.i.i.i ], [ %.137.i.i.i265.i.i.i, %B224.i.i.i261.i.i.i ], [ 0, %B356.i.i.i258.i.i.i ], [ 0, %B50.i.i.i240.i.i.i ], [ 0, %B250.i.i219.i.i.i ]
  %following.5.0.i.i227.i.i.i = phi i64 [ %following.4.0.i.i277349.i.i.i, %B292.i.i281.i.i.i ], [ %32, %B224.i.i.i261.i.i.i ], [ -1, %B356.i.i.i258.i.i.i ], [ -1, %B50.i.i.i240.i.i.i ], [ -1, %B250.i.i219.i.i.i ]
  %.75.i228.i.i.i = icmp sgt i64 %following.5.0.i.i227.i.i.i, -1
  %.81.i229.i.i.i = icmp sgt i64 %value.6.0.i.i226.i.i.i, -2
  %or.cond.i230.i.i.i = select i1 %.75.i228.i.i.i, i1 %.81.i229.i.i.i, i1 false
  %.90.i231.i.i.i = sub nsw i64 %.95.i.i.i, %following.5.0.i.i227.i.i.i
  %.94.i232.i.i.i = icmp sle i64 %value.6.0.i.i226.i.i.i, %.90.i231.i.i.i
  %or.cond27.i233.i.i.i = select i1 %or.cond.i230.i.i.i, i1 %.94.i232.i.i.i, i1 false
  %.13.i.i234.i.i.i = tail call i64 @llvm.smax.i64(i64 %value.6.0.i.i226.i.i.i, i64 0)
  %.126.i235.i.i.i = add nuw nsw i64 %.13.i.i234.i.i.i, %following.5.0.i.i227.i.i.i
  %following.2.0.i236.i.i.i = select i1 %or.cond27.i233.i.i.i, i64 %.126.i235.i.i.i, i64 -1
  %.691.i.i.i = getelementptr i64, ptr %5, i64 %.477.i.i.i
  store i64 %value.6.0.i.i226.i.i.i, ptr %.691.i.i.i, align 8
  %.746.i.i.i = getelementptr i64, ptr %6, i64 %.477.i.i.i
  store i64 %following.5.0.i.i227.i.i.i, ptr %.746.i.i.i, align 8
  %.755.i.i.i = icmp slt i64 %following.2.0.i236.i.i.i, 0
  br i1 %.755.i.i.i, label %B328.endif.i.i, label %B774.i.i.i

B774.endif.i.i.i:
  %value.6.0.i150.i.i.i = phi i64 [ %.222.i199.i.i.i, %B292.i195.i.i.i ], [ %.137.i.i179.i.i.i, %B224.i.i175.i.i.i ], [ 0, %B356.i.i172.i.i.i ], [ 0, %B50.i.i154.i.i.i ], [ 0, %B250.i143.i.i.i ]
  %following.5.0.i151.i.i.i = phi i64 [ %following.4.0.i191354.i.i.i, %B292.i195.i.i.i ], [ %36, %B224.i.i175.i.i.i ], [ -1, %B356.i.i172.i.i.i ], [ -1, %B50.i.i154.i.i.i ], [ -1, %B250.i143.i.i.i ]
  %.884.i.i.i = getelementptr i64, ptr %2, i64 %.477.i.i.i
  store i64 %value.6.0.i150.i.i.i, ptr %.884.i.i.i, align 8
  %.942.i.i.i = getelementptr i64, ptr %7, i64 %.477.i.i.i
  store i64 %following.5.0.i151.i.i.i, ptr %.942.i.i.i, align 8
  %.952.i.i.i = icmp sgt i64 %following.5.0.i151.i.i.i, -1
  %.958.i.i.i = icmp ne i64 %value.6.0.i150.i.i.i, 0
  %or.cond432.i.i.i = select i1 %.952.i.i.i, i1 %.958.i.i.i, i1 false
  br i1 %or.cond432.i.i.i, label %B886.i.i.i, label %B922.i.i.i

B424.i.i:
  %.793.i.i = icmp slt i64 %row.2.0745.i.i, 0
  %.794.i.i = select i1 %.793.i.i, i64 %arg.p4_1, i64 0
  %.795.i.i = add i64 %.794.i.i, %row.2.0745.i.i
  %.816.i.i = getelementptr i64, ptr %arg.p4, i64 %.795.i.i
  %.817.i.i = load i64, ptr %.816.i.i, align 8
  %.823.i.i = icmp sle i64 %.817.i.i, %previous_delta.2.0747.i.i
  %.829.i.i = icmp sgt i64 %.817.i.i, %.297.i.i
  %or.cond.i.i = select i1 %.823.i.i, i1 true, i1 %.829.i.i
  br i1 %or.cond.i.i, label %common.ret, label %B522.i.i

B522.i.i:
  %49 = icmp eq i64 %.409.i.i, 0
  br i1 %49, label %B572.i.i, label %B656.i.i

B572.i.i:
  %sunkaddr231.i.i = shl i64 %.795.i.i, 3
  %sunkaddr232.i.i = getelementptr i8, ptr %0, i64 %sunkaddr231.i.i
  %.932.i.i = load i64, ptr %sunkaddr232.i.i, align 8
  %.949.i.i = add nsw i64 %.932.i.i, %.353.i.i
  %.955.i.i = xor i64 %.949.i.i, %.353.i.i
  %.957.i.i = xor i64 %.949.i.i, %.932.i.i
  %.960.i.i = and i64 %.955.i.i, %.957.i.i
  %.961.i.i = icmp slt i64 %.960.i.i, 0
  br i1 %.961.i.i, label %common.ret, label %B656.i.i

B656.i.i:
  %timestamp.2.1.i.i = phi i64 [ %.949.i.i, %B572.i.i ], [ %.353.i.i, %B522.i.i ]
  %.1024.i.i = add nsw i64 %.817.i.i, %.241.i.i
  %.1032.i.i = icmp sge i64 %.1024.i.i, %arg.p2
  %.1042.i.i = icmp slt i64 %.1024.i.i, %arg.p3
  %or.cond713.i.i = select i1 %.1032.i.i, i1 %.1042.i.i, i1 false
  br i1 %or.cond713.i.i, label %B690.i.i, label %B808.i.i

B690.i.i:
  %sunkaddr233.i.i = shl i64 %.795.i.i, 3
  %sunkaddr234.i.i = getelementptr i8, ptr %arg.p4, i64 %sunkaddr233.i.i
  store i64 %.1024.i.i, ptr %sunkaddr234.i.i, align 8
  %sunkaddr236.i.i = getelementptr i8, ptr %0, i64 %sunkaddr233.i.i
  store i64 %timestamp.2.1.i.i, ptr %sunkaddr236.i.i, align 8
  %.1214.i.i = getelementptr i64, ptr %1, i64 %.795.i.i
  store i64 %.409.i.i, ptr %.1214.i.i, align 8
  %.1269.i.i = getelementptr i64, ptr %2, i64 %.795.i.i
  %.1270.i.i = load i64, ptr %.1269.i.i, align 8
  %.1272.i.i = add nsw i64 %.1270.i.i, %headers.2.0746.i.i
  %.1278.i.i = add nsw i64 %row.2.0745.i.i, 1
  br label %B808.i.i

B808.i.i:
  %row.3.1.i.i = phi i64 [ %.1278.i.i, %B690.i.i ], [ %row.2.0745.i.i, %B656.i.i ]
  %headers.3.1.i.i = phi i64 [ %.1272.i.i, %B690.i.i ], [ %headers.2.0746.i.i, %B656.i.i ]
  %.591.i.i = icmp ugt i64 %.590733743.i.i, 1
  br i1 %.591.i.i, label %B328.i.i, label %B810.i.i

B810.i.i:
  %position.2.0.lcssa.i.i = phi i64 [ %.129.i.i, %B58.i ], [ %.95.i.i.i, %B808.i.i ]
  %row.2.0.lcssa.i.i = phi i64 [ %.442.i.i, %B58.i ], [ %row.3.1.i.i, %B808.i.i ]
  %headers.2.0.lcssa.i.i = phi i64 [ 0, %B58.i ], [ %headers.3.1.i.i, %B808.i.i ]
  %.1341.not.i.i = icmp eq i64 %position.2.0.lcssa.i.i, %.185.i.i
  br i1 %.1341.not.i.i, label %B58.endif.i, label %B822.i.i

B822.i.i:
  %sunkaddr264 = getelementptr i8, ptr %arg.p5, i64 24
  store i64 %position.2.0.lcssa.i.i, ptr %sunkaddr264, align 8
  br label %common.ret

B328.endif.i.i:
  %failure.12.0.i.i.i = phi i64 [ 6, %B922.i.i.i ], [ 3, %B328.endif.i.i.i ], [ %spec.select, %B976.i.i.i ], [ 1, %B0.endif.i.i.i ], [ 4, %B462.endif.i.i.i ], [ 5, %B618.endif.i.i.i ], [ 2, %B188.endif.i.i.i ], [ 3, %B328.endif.thread383.i.i.i ]
  %.713.not.i.i = icmp eq i64 %failure.12.0.i.i.i, 0
  br i1 %.713.not.i.i, label %B424.i.i, label %common.ret

B58.endif.i:
  store i64 %row.2.0.lcssa.i.i, ptr %arg.p5, align 8
  %sunkaddr265 = getelementptr i8, ptr %arg.p5, i64 8
  %.1453.i.i = load i64, ptr %sunkaddr265, align 8
  %.1455.i.i = add nsw i64 %.1453.i.i, %headers.2.0.lcssa.i.i
  store i64 %.1455.i.i, ptr %sunkaddr265, align 8
  %.187.i = add nuw nsw i64 %.18018967.i, 1
  %exitcond.not.i = icmp eq i64 %arg.p1_0, %.187.i
  br i1 %exitcond.not.i, label %common.ret, label %B58.i
}

define i32 @scan_headers(ptr %retptr, ptr %excinfo, ptr %arg.p0, i64 %arg.p0_0, ptr %arg.p1, i64 %arg.p1_0, ptr %arg.p2, i64 %arg.p2_0, i64 %arg.p3, ptr %arg.p4, i64 %arg.p4_0, i64 %arg.p4_1, i64 %arg.p5) {
B0.endif.endif.endif.endif:
  %.165351.not.i = icmp slt i64 %arg.p1_0, 1
  br i1 %.165351.not.i, label %common.ret, label %B62.endif.lr.ph.i

common.ret:
  %header.3.0.lcssa.i = phi i64 [ %arg.p5, %B0.endif.endif.endif.endif ], [ %header.2.1.lcssa.i, %B60.loopexit.i ]
  store i64 %header.3.0.lcssa.i, ptr %retptr, align 8
  ret i32 0

B62.endif.lr.ph.i:
  %0 = getelementptr i64, ptr %arg.p4, i64 %arg.p4_1
  %.idx.i = mul i64 %arg.p4_1, 24
  %1 = getelementptr i8, ptr %arg.p4, i64 %.idx.i
  %.idx325.i = shl i64 %arg.p4_1, 4
  %2 = getelementptr i8, ptr %arg.p4, i64 %.idx325.i
  br label %B62.endif.i

B60.loopexit.i:
  %header.2.1.lcssa.i = phi i64 [ %header.3.0354.i, %B62.endif.i ], [ %.695.i, %B124.endif.endif.i ]
  %exitcond367.not.i = icmp eq i64 %.178.i, %arg.p1_0
  br i1 %exitcond367.not.i, label %common.ret, label %B62.endif.i

B124.i:
  %position.3.1339.i = phi i64 [ %following.2.0.i20.i, %B124.endif.endif.i ], [ %.238.i, %B124.preheader.i ]
  %header.2.1338.i = phi i64 [ %.695.i, %B124.endif.endif.i ], [ %header.3.0354.i, %B124.preheader.i ]
  %.357333336.i = phi i64 [ %.364.i, %B124.endif.endif.i ], [ 0, %B124.preheader.i ]
  %.364.i = add nuw nsw i64 %.357333336.i, 1
  %.32.i.i.i = sub nsw i64 %arg.p3, %position.3.1339.i
  %.33.i.i.i = icmp sgt i64 %.32.i.i.i, 1
  br i1 %.33.i.i.i, label %B82.i.i.i, label %B250.i.i.i

B82.i.i.i:
  %.49.i.i.i = icmp slt i64 %position.3.1339.i, 0
  %.50.i.i.i = select i1 %.49.i.i.i, i64 %arg.p0_0, i64 0
  %3 = getelementptr i8, ptr %arg.p0, i64 %position.3.1339.i
  %.64.i.i.i = getelementptr i8, ptr %3, i64 %.50.i.i.i
  %.65.i.i.i = load i8, ptr %.64.i.i.i, align 1
  %.66.i.i.i = zext i8 %.65.i.i.i to i64
  %.74.i.i.i = add nsw i64 %position.3.1339.i, 1
  %.82.i.i.i = icmp slt i8 %.65.i.i.i, 0
  br i1 %.82.i.i.i, label %B146.i.i.i, label %B216.i.i.i

B146.i.i.i:
  %.98.i.i.i = icmp slt i64 %position.3.1339.i, -1
  %.99.i.i.i = select i1 %.98.i.i.i, i64 %arg.p0_0, i64 0
  %4 = getelementptr i8, ptr %arg.p0, i64 %.74.i.i.i
  %.113.i.i.i = getelementptr i8, ptr %4, i64 %.99.i.i.i
  %.114.i.i.i = load i8, ptr %.113.i.i.i, align 1
  %.115.i.i.i = zext i8 %.114.i.i.i to i64
  %.116.i.i.i = shl nuw nsw i64 %.115.i.i.i, 7
  %.117.i.i.i = add nsw i64 %.66.i.i.i, -128
  %.119.i.i.i = or i64 %.116.i.i.i, %.117.i.i.i
  %.125.i.i.i = add nsw i64 %position.3.1339.i, 2
  br label %B216.i.i.i

B216.i.i.i:
  %value.5.0.i.i.i = phi i64 [ %.119.i.i.i, %B146.i.i.i ], [ %.66.i.i.i, %B82.i.i.i ]
  %following.4.0.i.i.i = phi i64 [ %.125.i.i.i, %B146.i.i.i ], [ %.74.i.i.i, %B82.i.i.i ]
  %.136.i.i.i = icmp slt i64 %following.4.0.i.i.i, 0
  %.139.i.i.i = icmp ugt i64 %value.5.0.i.i.i, 16383
  %or.cond.i.i.i = select i1 %.136.i.i.i, i1 true, i1 %.139.i.i.i
  br i1 %or.cond.i.i.i, label %B250.i.i.i, label %B292.i.i.i

B250.i.i.i:
  %.32.i.i.i.i = icmp sgt i64 %arg.p3, %position.3.1339.i
  br i1 %.32.i.i.i.i, label %B50.i.i.i.i.preheader, label %B124.endif.i

B50.i.i.i.i.preheader:
  br label %B50.i.i.i.i

B50.i.i.i.i:
  %position.2.0.i.i.i.i = phi i64 [ %.73.i.i.i.i, %B356.i.i.i.i ], [ %position.3.1339.i, %B50.i.i.i.i.preheader ]
  %folded.2.0.i.i.i.i = phi i64 [ %.108.i.i.i.i, %B356.i.i.i.i ], [ 0, %B50.i.i.i.i.preheader ]
  %shift.2.0.i.i.i.i = phi i64 [ %.160.i.i.i.i, %B356.i.i.i.i ], [ 0, %B50.i.i.i.i.preheader ]
  %.51.i.i.i.i = icmp slt i64 %position.2.0.i.i.i.i, 0
  %.52.i.i.i.i = select i1 %.51.i.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i.i.i
  %scevgep22.i.i.i.i = getelementptr i8, ptr %scevgep.i.i.i.i, i64 %position.2.0.i.i.i.i
  %.67.i.i.i.i = load i8, ptr %scevgep22.i.i.i.i, align 1
  %promoted = zext i8 %.67.i.i.i.i to i64
  %.73.i.i.i.i = add i64 %position.2.0.i.i.i.i, 1
  %.80.i.i.i.i = icmp eq i64 %shift.2.0.i.i.i.i, 63
  %.85.i.i.i.i = icmp ugt i8 %.67.i.i.i.i, 1
  %or.cond.i.i.i.i = select i1 %.80.i.i.i.i, i1 %.85.i.i.i.i, i1 false
  br i1 %or.cond.i.i.i.i, label %B124.endif.i, label %B138.i.i.i.i

B138.i.i.i.i:
  %5 = trunc i64 %promoted to i8
  %6 = and i64 %promoted, 127
  %.106.i.i.i.i = shl i64 %6, %shift.2.0.i.i.i.i
  %.108.i.i.i.i = or i64 %.106.i.i.i.i, %folded.2.0.i.i.i.i
  %.117.i.i.i.i = icmp sgt i8 %5, -1
  br i1 %.117.i.i.i.i, label %B224.i.i.i.i, label %B356.i.i.i.i

B224.i.i.i.i:
  %.131.i.i.i.i = lshr i64 %.108.i.i.i.i, 1
  %.133.i.i.i.i = and i64 %.108.i.i.i.i, 1
  %.136.i.i.i.i = sub nsw i64 0, %.133.i.i.i.i
  %.137.i.i.i.i = xor i64 %.131.i.i.i.i, %.136.i.i.i.i
  %7 = add i64 %position.2.0.i.i.i.i, 1
  br label %B124.endif.i

B356.i.i.i.i:
  %.160.i.i.i.i = add nuw nsw i64 %shift.2.0.i.i.i.i, 7
  %exitcond.not.i.i.i.i = icmp eq i64 %arg.p3, %.73.i.i.i.i
  br i1 %exitcond.not.i.i.i.i, label %B124.endif.i, label %B50.i.i.i.i

B292.i.i.i:
  %.216.i.i.i = lshr i64 %value.5.0.i.i.i, 1
  %.218.i.i.i = and i64 %value.5.0.i.i.i, 1
  %.221.i.i.i = sub nsw i64 0, %.218.i.i.i
  %.222.i.i.i = xor i64 %.216.i.i.i, %.221.i.i.i
  br label %B124.endif.i

B62.endif.i:
  %header.3.0354.i = phi i64 [ %arg.p5, %B62.endif.lr.ph.i ], [ %header.2.1.lcssa.i, %B60.loopexit.i ]
  %.171344352.i = phi i64 [ 0, %B62.endif.lr.ph.i ], [ %.178.i, %B60.loopexit.i ]
  %.178.i = add nuw nsw i64 %.171344352.i, 1
  %8 = getelementptr i64, ptr %arg.p2, i64 %.171344352.i
  %.271.i = load i64, ptr %8, align 8
  %.351335.not.i = icmp slt i64 %.271.i, 1
  br i1 %.351335.not.i, label %B60.loopexit.i, label %B124.preheader.i

B124.preheader.i:
  %9 = getelementptr i64, ptr %arg.p1, i64 %.171344352.i
  %.238.i = load i64, ptr %9, align 8
  br label %B124.i

B124.endif.i:
  %value.6.0.i.i.i = phi i64 [ %.222.i.i.i, %B292.i.i.i ], [ %.137.i.i.i.i, %B224.i.i.i.i ], [ 0, %B356.i.i.i.i ], [ 0, %B50.i.i.i.i ], [ 0, %B250.i.i.i ]
  %following.5.0.i.i.i = phi i64 [ %following.4.0.i.i.i, %B292.i.i.i ], [ %7, %B224.i.i.i.i ], [ -1, %B356.i.i.i.i ], [ -1, %B50.i.i.i.i ], [ -1, %B250.i.i.i ]
  %.75.i.i = icmp sgt i64 %following.5.0.i.i.i, -1
  %.81.i.i = icmp sgt i64 %value.6.0.i.i.i, -2
  %or.cond.i.i = select i1 %.75.i.i, i1 %.81.i.i, i1 false
  %.90.i.i = sub nsw i64 %arg.p3, %following.5.0.i.i.i
  %.94.i.i = icmp sle i64 %value.6.0.i.i.i, %.90.i.i
  %or.cond27.i.i = select i1 %or.cond.i.i, i1 %.94.i.i, i1 false
  %.13.i.i.i = tail call i64 @llvm.smax.i64(i64 %value.6.0.i.i.i, i64 0)
  %.126.i.i = add nuw nsw i64 %.13.i.i.i, %following.5.0.i.i.i
  %following.2.0.i.i = select i1 %or.cond27.i.i, i64 %.126.i.i, i64 -1
  %.461.i = icmp slt i64 %header.2.1338.i, 0
  %.462.i = select i1 %.461.i, i64 %arg.p4_1, i64 0
  %.463.i = add i64 %.462.i, %header.2.1338.i
  %.484.i = getelementptr i64, ptr %0, i64 %.463.i
  store i64 %value.6.0.i.i.i, ptr %.484.i, align 8
  %.539.i = getelementptr i64, ptr %arg.p4, i64 %.463.i
  store i64 %following.5.0.i.i.i, ptr %.539.i, align 8
  %.32.i.i1.i = sub nsw i64 %arg.p3, %following.2.0.i.i
  %.33.i.i2.i = icmp sgt i64 %.32.i.i1.i, 1
  br i1 %.33.i.i2.i, label %B82.i.i51.i, label %B250.i.i3.i

B82.i.i51.i:
  %.49.i.i52.i = icmp slt i64 %following.2.0.i.i, 0
  %.50.i.i53.i = select i1 %.49.i.i52.i, i64 %arg.p0_0, i64 0
  %10 = getelementptr i8, ptr %arg.p0, i64 %following.2.0.i.i
  %.64.i.i54.i = getelementptr i8, ptr %10, i64 %.50.i.i53.i
  %.65.i.i55.i = load i8, ptr %.64.i.i54.i, align 1
  %.66.i.i56.i = zext i8 %.65.i.i55.i to i64
  %.74.i.i57.i = add nsw i64 %following.2.0.i.i, 1
  %.82.i.i58.i = icmp slt i8 %.65.i.i55.i, 0
  br i1 %.82.i.i58.i, label %B146.i.i70.i, label %B216.i.i59.i

B146.i.i70.i:
  %.98.i.i71.i = icmp slt i64 %following.2.0.i.i, -1
  %.99.i.i72.i = select i1 %.98.i.i71.i, i64 %arg.p0_0, i64 0
  %11 = getelementptr i8, ptr %arg.p0, i64 %.74.i.i57.i
  %.113.i.i73.i = getelementptr i8, ptr %11, i64 %.99.i.i72.i
  %.114.i.i74.i = load i8, ptr %.113.i.i73.i, align 1
  %.115.i.i75.i = zext i8 %.114.i.i74.i to i64
  %.116.i.i76.i = shl nuw nsw i64 %.115.i.i75.i, 7
  %.117.i.i77.i = add nsw i64 %.66.i.i56.i, -128
  %.119.i.i78.i = or i64 %.116.i.i76.i, %.117.i.i77.i
  %.125.i.i79.i = add nsw i64 %following.2.0.i.i, 2
  br label %B216.i.i59.i

B216.i.i59.i:
  %value.5.0.i.i60.i = phi i64 [ %.119.i.i78.i, %B146.i.i70.i ], [ %.66.i.i56.i, %B82.i.i51.i ]
  %following.4.0.i.i61.i = phi i64 [ %.125.i.i79.i, %B146.i.i70.i ], [ %.74.i.i57.i, %B82.i.i51.i ]
  %.136.i.i62.i = icmp slt i64 %following.4.0.i.i61.i, 0
  %.139.i.i63.i = icmp ugt i64 %value.5.0.i.i60.i, 16383
  %or.cond.i.i64.i = select i1 %.136.i.i62.i, i1 true, i1 %.139.i.i63.i
  br i1 %or.cond.i.i64.i, label %B250.i.i3.i, label %B292.i.i65.i

B250.i.i3.i:
  %.32.i.i.i4.i = icmp sgt i64 %arg.p3, %following.2.0.i.i
  br i1 %.32.i.i.i4.i, label %B50.i.i.i24.i.preheader, label %B124.endif.endif.i

B50.i.i.i24.i.preheader:
  br label %B50.i.i.i24.i

B50.i.i.i24.i:
  %position.2.0.i.i.i25.i = phi i64 [ %.73.i.i.i34.i, %B356.i.i.i42.i ], [ %following.2.0.i.i, %B50.i.i.i24.i.preheader ]
  %folded.2.0.i.i.i26.i = phi i64 [ %.108.i.i.i40.i, %B356.i.i.i42.i ], [ 0, %B50.i.i.i24.i.preheader ]
  %shift.2.0.i.i.i27.i = phi i64 [ %.160.i.i.i43.i, %B356.i.i.i42.i ], [ 0, %B50.i.i.i24.i.preheader ]
  %.51.i.i.i28.i = icmp slt i64 %position.2.0.i.i.i25.i, 0
  %.52.i.i.i29.i = select i1 %.51.i.i.i28.i, i64 %arg.p0_0, i64 0
  %scevgep.i.i.i30.i = getelementptr i8, ptr %arg.p0, i64 %.52.i.i.i29.i
  %scevgep22.i.i.i31.i = getelementptr i8, ptr %scevgep.i.i.i30.i, i64 %position.2.0.i.i.i25.i
  %.67.i.i.i32.i = load i8, ptr %scevgep22.i.i.i31.i, align 1
  %promoted65 = zext i8 %.67.i.i.i32.i to i64
  %.73.i.i.i34.i = add i64 %position.2.0.i.i.i25.i, 1
  %.80.i.i.i35.i = icmp eq i64 %shift.2.0.i.i.i27.i, 63
  %.85.i.i.i36.i = icmp ugt i8 %.67.i.i.i32.i, 1
  %or.cond.i.i.i37.i = select i1 %.80.i.i.i35.i, i1 %.85.i.i.i36.i, i1 false
  br i1 %or.cond.i.i.i37.i, label %B124.endif.endif.i, label %B138.i.i.i38.i

B138.i.i.i38.i:
  %12 = trunc i64 %promoted65 to i8
  %13 = and i64 %promoted65, 127
  %.106.i.i.i39.i = shl i64 %13, %shift.2.0.i.i.i27.i
  %.108.i.i.i40.i = or i64 %.106.i.i.i39.i, %folded.2.0.i.i.i26.i
  %.117.i.i.i41.i = icmp sgt i8 %12, -1
  br i1 %.117.i.i.i41.i, label %B224.i.i.i45.i, label %B356.i.i.i42.i

B224.i.i.i45.i:
  %.131.i.i.i46.i = lshr i64 %.108.i.i.i40.i, 1
  %.133.i.i.i47.i = and i64 %.108.i.i.i40.i, 1
  %.136.i.i.i48.i = sub nsw i64 0, %.133.i.i.i47.i
  %.137.i.i.i49.i = xor i64 %.131.i.i.i46.i, %.136.i.i.i48.i
  %14 = add i64 %position.2.0.i.i.i25.i, 1
  br label %B124.endif.endif.i

B356.i.i.i42.i:
  %.160.i.i.i43.i = add nuw nsw i64 %shift.2.0.i.i.i27.i, 7
  %exitcond.not.i.i.i44.i = icmp eq i64 %arg.p3, %.73.i.i.i34.i
  br i1 %exitcond.not.i.i.i44.i, label %B124.endif.endif.i, label %B50.i.i.i24.i

B292.i.i65.i:
  %.216.i.i66.i = lshr i64 %value.5.0.i.i60.i, 1
  %.218.i.i67.i = and i64 %value.5.0.i.i60.i, 1
  %.221.i.i68.i = sub nsw i64 0, %.218.i.i67.i
  %.222.i.i69.i = xor i64 %.216.i.i66.i, %.221.i.i68.i
  br label %B124.endif.endif.i

B124.endif.endif.i:
  %value.6.0.i.i10.i = phi i64 [ %.222.i.i69.i, %B292.i.i65.i ], [ %.137.i.i.i49.i, %B224.i.i.i45.i ], [ 0, %B356.i.i.i42.i ], [ 0, %B50.i.i.i24.i ], [ 0, %B250.i.i3.i ]
  %following.5.0.i.i11.i = phi i64 [ %following.4.0.i.i61.i, %B292.i.i65.i ], [ %14, %B224.i.i.i45.i ], [ -1, %B356.i.i.i42.i ], [ -1, %B50.i.i.i24.i ], [ -1, %B250.i.i3.i ]
  %.75.i12.i = icmp sgt i64 %following.5.0.i.i11.i, -1
  %.81.i13.i = icmp sgt i64 %value.6.0.i.i10.i, -2
  %or.cond.i14.i = select i1 %.75.i12.i, i1 %.81.i13.i, i1 false
  %.90.i15.i = sub nsw i64 %arg.p3, %following.5.0.i.i11.i
  %.94.i16.i = icmp sle i64 %value.6.0.i.i10.i, %.90.i15.i
  %or.cond27.i17.i = select i1 %or.cond.i14.i, i1 %.94.i16.i, i1 false
  %.13.i.i18.i = tail call i64 @llvm.smax.i64(i64 %value.6.0.i.i10.i, i64 0)
  %.126.i19.i = add nuw nsw i64 %.13.i.i18.i, %following.5.0.i.i11.i
  %following.2.0.i20.i = select i1 %or.cond27.i17.i, i64 %.126.i19.i, i64 -1
  %.637.i = getelementptr i64, ptr %1, i64 %.463.i
  store i64 %value.6.0.i.i10.i, ptr %.637.i, align 8
  %.692.i = getelementptr i64, ptr %2, i64 %.463.i
  store i64 %following.5.0.i.i11.i, ptr %.692.i, align 8
  %.695.i = add nsw i64 %header.2.1338.i, 1
  %exitcond.not.i = icmp eq i64 %.271.i, %.364.i
  br i1 %exitcond.not.i, label %B60.loopexit.i, label %B124.i
}

define i32 @gather(ptr %retptr, ptr %excinfo, ptr %arg.p0, i64 %arg.p0_0, ptr %arg.p1, i64 %arg.p1_0, ptr %arg.p2, i64 %arg.p2_0, ptr %arg.p3, i64 %arg.p3_0, ptr %arg.p4, i64 %arg.p4_0, ptr %arg.p5, i64 %arg.p5_0, i64 %arg.p6) {
B0.endif.endif.endif.endif.endif.endif:
  %.184189.not.i = icmp slt i64 %arg.p1_0, 1
  br i1 %.184189.not.i, label %common.ret, label %B58.i.preheader

B58.i.preheader:
  br label %B58.i

common.ret:
  %at.2.0.lcssa.i = phi i64 [ %arg.p6, %B0.endif.endif.endif.endif.endif.endif ], [ %at.3.1.i, %B166.i ]
  store i64 %at.2.0.lcssa.i, ptr %retptr, align 8
  ret i32 0

B58.i:
  %at.2.0192.i = phi i64 [ %at.3.1.i, %B166.i ], [ %arg.p6, %B58.i.preheader ]
  %.190188190.i = phi i64 [ %.197.i, %B166.i ], [ 0, %B58.i.preheader ]
  %.197.i = add nuw nsw i64 %.190188190.i, 1
  %0 = shl i64 %.190188190.i, 3
  %scevgep2.i = getelementptr i8, ptr %arg.p2, i64 %0
  %.259.i = load i64, ptr %scevgep2.i, align 8
  %.264.i = icmp sgt i64 %.259.i, -1
  %1 = getelementptr i8, ptr %arg.p5, i64 %.190188190.i
  %.296.i = zext i1 %.264.i to i8
  store i8 %.296.i, ptr %1, align 1
  %.299.i = icmp sgt i64 %.259.i, 0
  br i1 %.299.i, label %B106.i, label %B166.i

B106.i:
  %2 = shl i64 %.190188190.i, 3
  %scevgep = getelementptr i8, ptr %arg.p1, i64 %2
  %.331.i = load i64, ptr %scevgep, align 8
  %.348.i = getelementptr i8, ptr %arg.p3, i64 %at.2.0192.i
  %.349.i = getelementptr i8, ptr %arg.p0, i64 %.331.i
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %.348.i, ptr align 1 %.349.i, i64 %.259.i, i1 false)
  %.354.i = add nsw i64 %.259.i, %at.2.0192.i
  br label %B166.i

B166.i:
  %at.3.1.i = phi i64 [ %.354.i, %B106.i ], [ %at.2.0192.i, %B58.i ]
  %3 = shl i64 %.190188190.i, 2
  %scevgep.i = getelementptr i8, ptr %arg.p4, i64 %3
  %.398.i = trunc i64 %at.3.1.i to i32
  store i32 %.398.i, ptr %scevgep.i, align 4
  %exitcond.not.i = icmp eq i64 %arg.p1_0, %.197.i
  br i1 %exitcond.not.i, label %common.ret, label %B58.i
}
