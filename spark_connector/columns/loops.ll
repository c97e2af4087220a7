; Made by make_loops.py from sources with the sum 07d53e2c3b69ef591bd798725f88bcecd0c6df55b7dfb9474bd024ec56ef9f9c; do not edit.
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
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

define i32 @plan_rows(ptr %retptr, ptr %excinfo, ptr %arg.p0, i64 %arg.p0_0, ptr %arg.p1, i64 %arg.p1_0, i64 %arg.p1_1, ptr %arg.p2, i64 %arg.p2_0, i64 %arg.p2_1, ptr %arg.p3, i64 %arg.p3_0, i64 %arg.p3_1, ptr %arg.p4, i64 %arg.p4_0, ptr %arg.p5, i64 %arg.p5_0, ptr %arg.p6, i64 %arg.p6_0, i64 %arg.p6_1, i64 %arg.p7, i64 %arg.p8, i64 %arg.p9, ptr %arg.p10, i64 %arg.p10_0) {
B0.endif.endif.endif.endif.endif.endif.endif.endif:
  %.178.i = load i64, ptr %arg.p10, align 8
  %.230.i = sub i64 %arg.p1_1, %.178.i
  %.2761377.not.i = icmp slt i64 %.230.i, 1
  br i1 %.2761377.not.i, label %B1440.i, label %B84.lr.ph.i

common.ret:
  %.sink.i = phi i64 [ 0, %B1440.i ], [ 3, %B488.i ], [ 2, %B184.i ], [ 1, %B84.i ], [ 4, %B284.endif.i ]
  store i64 %.sink.i, ptr %retptr, align 8
  ret i32 0

B84.lr.ph.i:
  %.376.i = getelementptr i8, ptr %arg.p10, i64 16
  %.idx.i = shl i64 %arg.p1_1, 6
  %0 = getelementptr i8, ptr %arg.p1, i64 %.idx.i
  %1 = getelementptr i64, ptr %arg.p1, i64 %arg.p1_1
  %.idx1287.i = mul i64 %arg.p1_1, 56
  %2 = getelementptr i8, ptr %arg.p1, i64 %.idx1287.i
  %.idx1288.i = shl i64 %arg.p3_1, 5
  %3 = getelementptr i8, ptr %arg.p3, i64 %.idx1288.i
  %.idx1289.i = mul i64 %arg.p3_1, 24
  %4 = getelementptr i8, ptr %arg.p3, i64 %.idx1289.i
  %.idx1290.i = mul i64 %arg.p1_1, 80
  %5 = getelementptr i8, ptr %arg.p1, i64 %.idx1290.i
  %.idx1291.i = mul i64 %arg.p1_1, 72
  %6 = getelementptr i8, ptr %arg.p1, i64 %.idx1291.i
  %.idx1292.i = shl i64 %arg.p6_1, 4
  %7 = getelementptr i8, ptr %arg.p6, i64 %.idx1292.i
  %.idx1293.i = mul i64 %arg.p6_1, 24
  %8 = getelementptr i8, ptr %arg.p6, i64 %.idx1293.i
  %.idx1294.i = mul i64 %arg.p6_1, 40
  %9 = getelementptr i8, ptr %arg.p6, i64 %.idx1294.i
  %.idx1295.i = mul i64 %arg.p1_1, 48
  %10 = getelementptr i8, ptr %arg.p1, i64 %.idx1295.i
  %.377.pre.i = load i64, ptr %.376.i, align 8
  %11 = getelementptr i64, ptr %arg.p3, i64 %arg.p3_1
  %.idx.i.i.i = shl i64 %arg.p3_1, 4
  %12 = getelementptr i8, ptr %arg.p3, i64 %.idx.i.i.i
  %13 = add i64 %arg.p0_0, 1
  %14 = add i64 %arg.p0_0, 2
  %15 = add i64 %arg.p0_0, 3
  %.idx.i1.i = mul i64 %arg.p1_1, 40
  %16 = getelementptr i8, ptr %arg.p1, i64 %.idx.i1.i
  %.idx173.i.i = mul i64 %arg.p1_1, 24
  %17 = getelementptr i8, ptr %arg.p1, i64 %.idx173.i.i
  %.idx174.i.i = shl i64 %arg.p1_1, 5
  %18 = getelementptr i8, ptr %arg.p1, i64 %.idx174.i.i
  %19 = getelementptr i64, ptr %arg.p2, i64 %arg.p2_1
  %.idx175.i.i = mul i64 %arg.p2_1, 24
  %20 = getelementptr i8, ptr %arg.p2, i64 %.idx175.i.i
  %.idx50.i.i.i = shl i64 %arg.p6_1, 5
  %21 = getelementptr i8, ptr %arg.p6, i64 %.idx50.i.i.i
  %22 = getelementptr i64, ptr %arg.p6, i64 %arg.p6_1
  %.idx221.i.i = mul i64 %arg.p6_1, 56
  %23 = getelementptr i8, ptr %arg.p6, i64 %.idx221.i.i
  br label %B84.i

B84.i:
  %.377.i = phi i64 [ %.377.pre.i, %B84.lr.ph.i ], [ %.2327.i, %B1076.endif.endif.endif.i ]
  %.27513491380.i = phi i64 [ %.230.i, %B84.lr.ph.i ], [ %.285.i, %B1076.endif.endif.endif.i ]
  %.28213631378.i = phi i64 [ %.178.i, %B84.lr.ph.i ], [ %.289.i, %B1076.endif.endif.endif.i ]
  %.285.i = add nsw i64 %.27513491380.i, -1
  %.289.i = add i64 %.28213631378.i, 1
  store i64 %.28213631378.i, ptr %arg.p10, align 8
  %.379.not.i = icmp slt i64 %.377.i, %arg.p9
  br i1 %.379.not.i, label %B184.i, label %common.ret

B184.i:
  %sunkaddr = getelementptr i8, ptr %arg.p10, i64 8
  %.470.i = load i64, ptr %sunkaddr, align 8
  %.486.not.i = icmp slt i64 %.470.i, %arg.p6_1
  br i1 %.486.not.i, label %B284.i, label %common.ret

B284.i:
  %.105.i.i = icmp slt i64 %.28213631378.i, 0
  %.106.i.i = select i1 %.105.i.i, i64 %arg.p1_1, i64 0
  %.107.i.i = add i64 %.106.i.i, %.28213631378.i
  %.128.i.i = getelementptr i64, ptr %2, i64 %.107.i.i
  %.129.i.i = load i64, ptr %.128.i.i, align 8
  %.163.i.i = icmp slt i64 %.129.i.i, 0
  %.164.i.i = select i1 %.163.i.i, i64 %arg.p3_1, i64 0
  %.165.i.i = add i64 %.164.i.i, %.129.i.i
  %.186.i.i = getelementptr i64, ptr %11, i64 %.165.i.i
  %.187.i.i = load i64, ptr %.186.i.i, align 8
  %.244.i.i = getelementptr i64, ptr %0, i64 %.107.i.i
  %.245.i.i = load i64, ptr %.244.i.i, align 8
  %.253.i.i = icmp sgt i64 %.245.i.i, -1
  br i1 %.253.i.i, label %B136.i.i, label %B186.i.i

B136.i.i:
  %.282.i.i = icmp slt i64 %.245.i.i, %.187.i.i
  br i1 %.282.i.i, label %B148.i.i, label %B284.endif.i

B148.i.i:
  %.341.i.i = getelementptr i64, ptr %arg.p3, i64 %.165.i.i
  %.342.i.i = load i64, ptr %.341.i.i, align 8
  %.351.i.i = add nsw i64 %.342.i.i, %.245.i.i
  br label %B284.endif.i

B186.i.i:
  %.432.i.i = getelementptr i64, ptr %1, i64 %.107.i.i
  %.433.i.i = load i64, ptr %.432.i.i, align 8
  %.434.i.i = icmp sgt i64 %.433.i.i, -1
  br i1 %.434.i.i, label %B224.i.i, label %B422.endif.i.i

B224.i.i:
  %.495.i.i = getelementptr i64, ptr %arg.p1, i64 %.107.i.i
  %.496.i.i = load i64, ptr %.495.i.i, align 8
  %.26.i.i.i = and i64 %.433.i.i, 4294967295
  %.27.i.i.i = xor i64 %.26.i.i.i, 2538058380
  %.32.i.i.i = and i64 %.433.i.i, 9223372036854775804
  %.33.i.i.i = add nsw i64 %.496.i.i, %.32.i.i.i
  %storemerge.i.i.i = lshr i64 %.433.i.i, 2
  %.120190.not.i.i.i = icmp eq i64 %storemerge.i.i.i, 0
  br i1 %.120190.not.i.i.i, label %B710.i.i.i, label %B130.preheader.i.i.i

B130.preheader.i.i.i:
  %24 = trunc i64 %.27.i.i.i to i32
  %25 = add nuw nsw i64 %storemerge.i.i.i, 4
  br label %B130.i.i.i

B130.i.i.i:
  %lsr.iv = phi i64 [ %lsr.iv.next, %B130.i.i.i ], [ %25, %B130.preheader.i.i.i ]
  %h.4.0193.i.i.i = phi i32 [ %.323.i.i.i, %B130.i.i.i ], [ %24, %B130.preheader.i.i.i ]
  %.126189191.i.i.i = phi i64 [ %.133.i.i.i, %B130.i.i.i ], [ %.496.i.i, %B130.preheader.i.i.i ]
  %.133.i.i.i = add i64 %.126189191.i.i.i, 4
  %.171.i.i.i = icmp slt i64 %.126189191.i.i.i, 0
  %.172.i.i.i = select i1 %.171.i.i.i, i64 %arg.p0_0, i64 0
  %scevgep6.i.i.i = getelementptr i8, ptr %arg.p0, i64 %.172.i.i.i
  %scevgep7.i.i.i = getelementptr i8, ptr %scevgep6.i.i.i, i64 %.126189191.i.i.i
  %.187.i.i.i = load i8, ptr %scevgep7.i.i.i, align 1
  %.203.i.i.i = icmp slt i64 %.126189191.i.i.i, -1
  %26 = select i1 %.203.i.i.i, i64 %13, i64 1
  %scevgep4.i.i.i = getelementptr i8, ptr %arg.p0, i64 %26
  %scevgep5.i.i.i = getelementptr i8, ptr %scevgep4.i.i.i, i64 %.126189191.i.i.i
  %.219.i.i.i = load i8, ptr %scevgep5.i.i.i, align 1
  %.223.i.i.i = zext i8 %.219.i.i.i to i32
  %.224.i.i.i = shl nuw nsw i32 %.223.i.i.i, 8
  %.225.i.i.i = zext i8 %.187.i.i.i to i32
  %.226.i.i.i = or i32 %.224.i.i.i, %.225.i.i.i
  %.241.i.i.i = icmp slt i64 %.126189191.i.i.i, -2
  %27 = select i1 %.241.i.i.i, i64 %14, i64 2
  %scevgep2.i.i.i = getelementptr i8, ptr %arg.p0, i64 %27
  %scevgep3.i.i.i = getelementptr i8, ptr %scevgep2.i.i.i, i64 %.126189191.i.i.i
  %.257.i.i.i = load i8, ptr %scevgep3.i.i.i, align 1
  %.261.i.i.i = zext i8 %.257.i.i.i to i32
  %.262.i.i.i = shl nuw nsw i32 %.261.i.i.i, 16
  %.263.i.i.i = or i32 %.226.i.i.i, %.262.i.i.i
  %.278.i.i.i = icmp slt i64 %.126189191.i.i.i, -3
  %28 = select i1 %.278.i.i.i, i64 %15, i64 3
  %scevgep.i.i.i = getelementptr i8, ptr %arg.p0, i64 %28
  %scevgep1.i.i.i = getelementptr i8, ptr %scevgep.i.i.i, i64 %.126189191.i.i.i
  %.294.i.i.i = load i8, ptr %scevgep1.i.i.i, align 1
  %.298.i.i.i = zext i8 %.294.i.i.i to i32
  %.299.i.i.i = shl nuw i32 %.298.i.i.i, 24
  %.300.i.i.i = or i32 %.263.i.i.i, %.299.i.i.i
  %.303.i.i.i = mul i32 %.300.i.i.i, 1540483477
  %.308.i.i.i = lshr i32 %.303.i.i.i, 24
  %.310.i.i.i = xor i32 %.308.i.i.i, %.303.i.i.i
  %.313.i.i.i = mul i32 %.310.i.i.i, 1540483477
  %29 = mul i32 %h.4.0193.i.i.i, 1540483477
  %.323.i.i.i = xor i32 %.313.i.i.i, %29
  %lsr.iv.next = add nsw i64 %lsr.iv, -1
  %.120.i.i.i = icmp ugt i64 %lsr.iv.next, 4
  br i1 %.120.i.i.i, label %B130.i.i.i, label %B710.loopexit.i.i.i

B710.loopexit.i.i.i:
  %.324.i.i.i = zext i32 %.323.i.i.i to i64
  br label %B710.i.i.i

B710.i.i.i:
  %h.4.0.lcssa.i.i.i = phi i64 [ %.27.i.i.i, %B224.i.i ], [ %.324.i.i.i, %B710.loopexit.i.i.i ]
  %.337.i.i.i = and i64 %.433.i.i, 3
  %.344.not.i.i.i = icmp eq i64 %.337.i.i.i, 0
  br i1 %.344.not.i.i.i, label %B224.endif.i.i, label %B786.i.i.i

B786.i.i.i:
  %.488.i.i.i = icmp slt i64 %.33.i.i.i, 0
  %.489.i.i.i = select i1 %.488.i.i.i, i64 %arg.p0_0, i64 0
  %30 = getelementptr i8, ptr %arg.p0, i64 %.33.i.i.i
  %.503.i.i.i = getelementptr i8, ptr %30, i64 %.489.i.i.i
  %.504.i.i.i = load i8, ptr %.503.i.i.i, align 1
  %.509.i.i.i = zext i8 %.504.i.i.i to i64
  %exitcond.not.i.i.i = icmp eq i64 %.337.i.i.i, 1
  br i1 %exitcond.not.i.i.i, label %B908.i.i.i, label %B786.1.i.i.i

B786.1.i.i.i:
  %.488.1.i.i.i = icmp slt i64 %.33.i.i.i, -1
  %.489.1.i.i.i = select i1 %.488.1.i.i.i, i64 %arg.p0_0, i64 0
  %31 = getelementptr i8, ptr %30, i64 1
  %.503.1.i.i.i = getelementptr i8, ptr %31, i64 %.489.1.i.i.i
  %.504.1.i.i.i = load i8, ptr %.503.1.i.i.i, align 1
  %.509.1.i.i.i = zext i8 %.504.1.i.i.i to i64
  %.510.1.i.i.i = shl nuw nsw i64 %.509.1.i.i.i, 8
  %.514.1.i.i.i = or i64 %.510.1.i.i.i, %.509.i.i.i
  %exitcond.not.1.i.i.i = icmp eq i64 %.337.i.i.i, 2
  br i1 %exitcond.not.1.i.i.i, label %B908.i.i.i, label %B786.2.i.i.i

B786.2.i.i.i:
  %.488.2.i.i.i = icmp slt i64 %.33.i.i.i, -2
  %.489.2.i.i.i = select i1 %.488.2.i.i.i, i64 %arg.p0_0, i64 0
  %32 = getelementptr i8, ptr %30, i64 2
  %.503.2.i.i.i = getelementptr i8, ptr %32, i64 %.489.2.i.i.i
  %.504.2.i.i.i = load i8, ptr %.503.2.i.i.i, align 1
  %.509.2.i.i.i = zext i8 %.504.2.i.i.i to i64
  %.510.2.i.i.i = shl nuw nsw i64 %.509.2.i.i.i, 16
  %.514.2.i.i.i = or i64 %.510.2.i.i.i, %.514.1.i.i.i
  br label %B908.i.i.i

B908.i.i.i:
  %.514.lcssa.i.i.i = phi i64 [ %.509.i.i.i, %B786.i.i.i ], [ %.514.1.i.i.i, %B786.1.i.i.i ], [ %.514.2.i.i.i, %B786.2.i.i.i ]
  %.531.i.i.i = xor i64 %.514.lcssa.i.i.i, %h.4.0.lcssa.i.i.i
  %.541.i.i.i = mul nuw nsw i64 %.531.i.i.i, 1540483477
  %.542.i.i.i = and i64 %.541.i.i.i, 4294967295
  br label %B224.endif.i.i

B224.endif.i.i:
  %h.5.0.i.i.i = phi i64 [ %.542.i.i.i, %B908.i.i.i ], [ %h.4.0.lcssa.i.i.i, %B710.i.i.i ]
  %.650.i.i = getelementptr i64, ptr %arg.p3, i64 %.165.i.i
  %.651.i.i = load i64, ptr %.650.i.i, align 8
  %.666.i.i = icmp eq i64 %.187.i.i, 0
  br i1 %.666.i.i, label %B224.endif.endif.i.i, label %B224.endif.else.if.i.i

B224.endif.endif.i.i:
  %rem.0.i.i = phi i64 [ 0, %B224.endif.i.i ], [ %spec.select.i.i, %49 ]
  %.706.i.i = add nsw i64 %rem.0.i.i, %.651.i.i
  br label %B284.endif.i

B224.endif.else.if.i.i:
  %.560.i.i.i = lshr i64 %h.5.0.i.i.i, 13
  %.562.i.i.i = xor i64 %.560.i.i.i, %h.5.0.i.i.i
  %.568.i.i.i = mul nuw nsw i64 %.562.i.i.i, 1540483477
  %.571.i.i.i = lshr i64 %.568.i.i.i, 15
  %.572.i.i.i = and i64 %.571.i.i.i, 131071
  %.568.i.masked.i.i = and i64 %.568.i.i.i, 2147483647
  %.662.i.i = xor i64 %.572.i.i.i, %.568.i.masked.i.i
  %33 = icmp ult i64 %.187.i.i, 4294967296
  br i1 %33, label %34, label %39

34:
  %35 = trunc i64 %.187.i.i to i32
  %36 = trunc i64 %.662.i.i to i32
  %37 = urem i32 %36, %35
  %38 = zext i32 %37 to i64
  br label %49

39:
  %40 = and i64 %.187.i.i, -4294967296
  %41 = icmp eq i64 %40, 0
  br i1 %41, label %42, label %47

42:
  %43 = trunc i64 %.187.i.i to i32
  %44 = trunc i64 %.662.i.i to i32
  %45 = urem i32 %44, %43
  %46 = zext i32 %45 to i64
  br label %49

47:
  %48 = srem i64 %.662.i.i, %.187.i.i
  br label %49

49:
  %50 = phi i64 [ %38, %34 ], [ %46, %42 ], [ %48, %47 ]
  %.686.not.i.i = icmp eq i64 %50, 0
  %51 = tail call i64 @llvm.smin.i64(i64 %.187.i.i, i64 0)
  %.694.i.i = select i1 %.686.not.i.i, i64 0, i64 %51
  %spec.select.i.i = add nsw i64 %.694.i.i, %50
  br label %B224.endif.endif.i.i

B422.endif.i.i:
  %.86.i.i.i = getelementptr i64, ptr %12, i64 %.165.i.i
  %.87.i.i.i = load i64, ptr %.86.i.i.i, align 8
  %.139.i.i.i = getelementptr i64, ptr %3, i64 %.165.i.i
  %.140.i.i.i = load i64, ptr %.139.i.i.i, align 8
  %.141.i.i.i = add nsw i64 %.140.i.i.i, %.87.i.i.i
  %.154.i.i.i = icmp slt i64 %.141.i.i.i, 0
  %.155.i.i.i = select i1 %.154.i.i.i, i64 %arg.p4_0, i64 0
  %52 = getelementptr i64, ptr %arg.p4, i64 %.141.i.i.i
  %.169.i.i.i = getelementptr i64, ptr %52, i64 %.155.i.i.i
  %.170.i.i.i = load i64, ptr %.169.i.i.i, align 8
  %.225.i1.i.i = getelementptr i64, ptr %arg.p3, i64 %.165.i.i
  %.226.i2.i.i = load i64, ptr %.225.i1.i.i, align 8
  %.232.i.i.i = add nsw i64 %.226.i2.i.i, %.170.i.i.i
  br label %B284.endif.i

B378.i:
  %.94.i.i = getelementptr i64, ptr %16, i64 %.107.i.i
  %.95.i.i = load i64, ptr %.94.i.i, align 8
  %.148.i.i = getelementptr i64, ptr %1, i64 %.107.i.i
  %.149.i.i = load i64, ptr %.148.i.i, align 8
  %.5.i.i.i.i.i = shl i64 %.149.i.i, 1
  %.6.i.i.i.i.i = ashr i64 %.149.i.i, 63
  %.7.i.i.i.i.i = xor i64 %.5.i.i.i.i.i, %.6.i.i.i.i.i
  %.43.i.i.i.i = icmp ugt i64 %.7.i.i.i.i.i, 127
  br i1 %.43.i.i.i.i, label %B76.i.i.i.i.preheader, label %B0.endif.i.i

B76.i.i.i.i.preheader:
  br label %B76.i.i.i.i

B76.i.i.i.i:
  %folded.2.0.i.i.i.i = phi i64 [ %.46.i.i.i.i, %B76.i.i.i.i ], [ %.7.i.i.i.i.i, %B76.i.i.i.i.preheader ]
  %size.2.0.i.i.i.i = phi i64 [ %.50.i.i.i.i, %B76.i.i.i.i ], [ 1, %B76.i.i.i.i.preheader ]
  %.46.i.i.i.i = lshr i64 %folded.2.0.i.i.i.i, 7
  %.50.i.i.i.i = add nuw nsw i64 %size.2.0.i.i.i.i, 1
  %.57.i.i.i.i = icmp ugt i64 %folded.2.0.i.i.i.i, 16383
  br i1 %.57.i.i.i.i, label %B76.i.i.i.i, label %B0.endif.i.i

B256.i.i:
  %size.2.0186.i.i = phi i64 [ %.281.i.i, %B256.lr.ph.i.i ], [ %.621.i.i, %B256.endif.endif.i.i ]
  %.422179185.i.i = phi i64 [ %.95.i.i, %B256.lr.ph.i.i ], [ %.432.i2.i, %B256.endif.endif.i.i ]
  %.429181184.i.i = phi i64 [ %.337.i.i, %B256.lr.ph.i.i ], [ %.436.i.i, %B256.endif.endif.i.i ]
  %.432.i2.i = add nsw i64 %.422179185.i.i, -1
  %.436.i.i = add i64 %.429181184.i.i, 1
  %.491.i.i = icmp slt i64 %.429181184.i.i, 0
  %.492.i.i = select i1 %.491.i.i, i64 %arg.p2_1, i64 0
  %.493.i.i = add i64 %.492.i.i, %.429181184.i.i
  %.514.i.i = getelementptr i64, ptr %19, i64 %.493.i.i
  %.515.i.i = load i64, ptr %.514.i.i, align 8
  %.5.i.i.i1.i.i = shl i64 %.515.i.i, 1
  %.6.i.i.i2.i.i = ashr i64 %.515.i.i, 63
  %.7.i.i.i3.i.i = xor i64 %.5.i.i.i1.i.i, %.6.i.i.i2.i.i
  %.43.i.i4.i.i = icmp ugt i64 %.7.i.i.i3.i.i, 127
  br i1 %.43.i.i4.i.i, label %B76.i.i9.i.i.preheader, label %B256.endif.i.i

B76.i.i9.i.i.preheader:
  br label %B76.i.i9.i.i

B76.i.i9.i.i:
  %folded.2.0.i.i10.i.i = phi i64 [ %.46.i.i12.i.i, %B76.i.i9.i.i ], [ %.7.i.i.i3.i.i, %B76.i.i9.i.i.preheader ]
  %size.2.0.i.i11.i.i = phi i64 [ %.50.i.i13.i.i, %B76.i.i9.i.i ], [ 1, %B76.i.i9.i.i.preheader ]
  %.46.i.i12.i.i = lshr i64 %folded.2.0.i.i10.i.i, 7
  %.50.i.i13.i.i = add nuw nsw i64 %size.2.0.i.i11.i.i, 1
  %.57.i.i14.i.i = icmp ugt i64 %folded.2.0.i.i10.i.i, 16383
  br i1 %.57.i.i14.i.i, label %B76.i.i9.i.i, label %B256.endif.i.i

B0.endif.i.i:
  %size.3.1.i.i.i.i = phi i64 [ 1, %B378.i ], [ %.50.i.i.i.i, %B76.i.i.i.i ]
  %.13.i.i.i.i = tail call i64 @llvm.smax.i64(i64 %.149.i.i, i64 0)
  %.229.i.i = getelementptr i64, ptr %17, i64 %.107.i.i
  %.230.i.i = load i64, ptr %.229.i.i, align 8
  %.5.i.i.i16.i.i = shl i64 %.230.i.i, 1
  %.6.i.i.i17.i.i = ashr i64 %.230.i.i, 63
  %.7.i.i.i18.i.i = xor i64 %.5.i.i.i16.i.i, %.6.i.i.i17.i.i
  %.43.i.i19.i.i = icmp ugt i64 %.7.i.i.i18.i.i, 127
  br i1 %.43.i.i19.i.i, label %B76.i.i24.i.i.preheader, label %B0.endif.endif.i.i

B76.i.i24.i.i.preheader:
  br label %B76.i.i24.i.i

B76.i.i24.i.i:
  %folded.2.0.i.i25.i.i = phi i64 [ %.46.i.i27.i.i, %B76.i.i24.i.i ], [ %.7.i.i.i18.i.i, %B76.i.i24.i.i.preheader ]
  %size.2.0.i.i26.i.i = phi i64 [ %.50.i.i28.i.i, %B76.i.i24.i.i ], [ 1, %B76.i.i24.i.i.preheader ]
  %.46.i.i27.i.i = lshr i64 %folded.2.0.i.i25.i.i, 7
  %.50.i.i28.i.i = add nuw nsw i64 %size.2.0.i.i26.i.i, 1
  %.57.i.i29.i.i = icmp ugt i64 %folded.2.0.i.i25.i.i, 16383
  br i1 %.57.i.i29.i.i, label %B76.i.i24.i.i, label %B0.endif.endif.i.i

B0.endif.endif.i.i:
  %size.3.1.i.i20.i.i = phi i64 [ 1, %B0.endif.i.i ], [ %.50.i.i28.i.i, %B76.i.i24.i.i ]
  %.13.i.i21.i.i = tail call i64 @llvm.smax.i64(i64 %.230.i.i, i64 0)
  %.5.i.i.i.i = shl i64 %.95.i.i, 1
  %.6.i.i.i.i = ashr i64 %.95.i.i, 63
  %.7.i.i.i.i = xor i64 %.5.i.i.i.i, %.6.i.i.i.i
  %.43.i.i.i = icmp ugt i64 %.7.i.i.i.i, 127
  br i1 %.43.i.i.i, label %B76.i.i.i.preheader, label %B0.endif.endif.endif.endif.i.i

B76.i.i.i.preheader:
  br label %B76.i.i.i

B76.i.i.i:
  %folded.2.0.i.i.i = phi i64 [ %.46.i.i.i, %B76.i.i.i ], [ %.7.i.i.i.i, %B76.i.i.i.preheader ]
  %size.2.0.i.i.i = phi i64 [ %.50.i.i.i, %B76.i.i.i ], [ 1, %B76.i.i.i.preheader ]
  %.46.i.i.i = lshr i64 %folded.2.0.i.i.i, 7
  %.50.i.i.i = add nuw nsw i64 %size.2.0.i.i.i, 1
  %.57.i.i.i = icmp ugt i64 %folded.2.0.i.i.i, 16383
  br i1 %.57.i.i.i, label %B76.i.i.i, label %B0.endif.endif.endif.endif.i.i

B0.endif.endif.endif.endif.i.i:
  %size.3.1.i.i.i = phi i64 [ 1, %B0.endif.endif.i.i ], [ %.50.i.i.i, %B76.i.i.i ]
  %.60.i22.i.i = add nuw i64 %.13.i.i.i.i, 1
  %.60.i.i.i = add i64 %.60.i22.i.i, %size.3.1.i.i.i.i
  %.176.i.i = add i64 %.60.i.i.i, %.13.i.i21.i.i
  %.255.i.i = add i64 %.176.i.i, %size.3.1.i.i20.i.i
  %.281.i.i = add nsw i64 %.255.i.i, %size.3.1.i.i.i
  %.423183.not.i.i = icmp slt i64 %.95.i.i, 1
  br i1 %.423183.not.i.i, label %B378.endif.i, label %B256.lr.ph.i.i

B256.lr.ph.i.i:
  %.336.i.i = getelementptr i64, ptr %18, i64 %.107.i.i
  %.337.i.i = load i64, ptr %.336.i.i, align 8
  br label %B256.i.i

B256.endif.i.i:
  %size.3.1.i.i5.i.i = phi i64 [ 1, %B256.i.i ], [ %.50.i.i13.i.i, %B76.i.i9.i.i ]
  %.13.i.i6.i.i = tail call i64 @llvm.smax.i64(i64 %.515.i.i, i64 0)
  %.593.i.i = getelementptr i64, ptr %20, i64 %.493.i.i
  %.594.i.i = load i64, ptr %.593.i.i, align 8
  %.5.i.i.i31.i.i = shl i64 %.594.i.i, 1
  %.6.i.i.i32.i.i = ashr i64 %.594.i.i, 63
  %.7.i.i.i33.i.i = xor i64 %.5.i.i.i31.i.i, %.6.i.i.i32.i.i
  %.43.i.i34.i.i = icmp ugt i64 %.7.i.i.i33.i.i, 127
  br i1 %.43.i.i34.i.i, label %B76.i.i39.i.i.preheader, label %B256.endif.endif.i.i

B76.i.i39.i.i.preheader:
  br label %B76.i.i39.i.i

B76.i.i39.i.i:
  %folded.2.0.i.i40.i.i = phi i64 [ %.46.i.i42.i.i, %B76.i.i39.i.i ], [ %.7.i.i.i33.i.i, %B76.i.i39.i.i.preheader ]
  %size.2.0.i.i41.i.i = phi i64 [ %.50.i.i43.i.i, %B76.i.i39.i.i ], [ 1, %B76.i.i39.i.i.preheader ]
  %.46.i.i42.i.i = lshr i64 %folded.2.0.i.i40.i.i, 7
  %.50.i.i43.i.i = add nuw nsw i64 %size.2.0.i.i41.i.i, 1
  %.57.i.i44.i.i = icmp ugt i64 %folded.2.0.i.i40.i.i, 16383
  br i1 %.57.i.i44.i.i, label %B76.i.i39.i.i, label %B256.endif.endif.i.i

B256.endif.endif.i.i:
  %size.3.1.i.i35.i.i = phi i64 [ 1, %B256.endif.i.i ], [ %.50.i.i43.i.i, %B76.i.i39.i.i ]
  %.13.i.i36.i.i = tail call i64 @llvm.smax.i64(i64 %.594.i.i, i64 0)
  %.60.i37.i.i = add i64 %.13.i.i6.i.i, %size.2.0186.i.i
  %.60.i7.i.i = add i64 %.60.i37.i.i, %size.3.1.i.i5.i.i
  %.619.i.i = add i64 %.60.i7.i.i, %.13.i.i36.i.i
  %.621.i.i = add i64 %.619.i.i, %size.3.1.i.i35.i.i
  %.423.i.i = icmp ugt i64 %.422179185.i.i, 1
  br i1 %.423.i.i, label %B256.i.i, label %B378.endif.i

B488.i:
  %.821.i = getelementptr i8, ptr %arg.p10, i64 24
  store i64 %.727.i, ptr %.821.i, align 8
  br label %common.ret

B552.i:
  %.867.i = getelementptr i64, ptr %arg.p5, i64 %slot.4.0.i.i
  %.868.i = load i64, ptr %.867.i, align 8
  %.60.i.i = icmp sgt i64 %.868.i, -1
  br i1 %.60.i.i, label %B20.i.i, label %B552.i.B922.sink.split.i_crit_edge

B552.i.B922.sink.split.i_crit_edge:
  %.pre117 = shl i64 %.107.i.i, 3
  br label %B922.i

B20.i.i:
  %53 = getelementptr i64, ptr %10, i64 %.28213631378.i
  %.94.i.i.i = getelementptr i64, ptr %53, i64 %.106.i.i
  %.95.i.i.i = load i64, ptr %.94.i.i.i, align 8
  %.152.i.i.i = getelementptr i64, ptr %21, i64 %.868.i
  %.153.i.i.i = load i64, ptr %.152.i.i.i, align 8
  %.154.i.i19.i = sub nsw i64 %.95.i.i.i, %.153.i.i.i
  %.5.i.i.i.i20.i = shl i64 %.154.i.i19.i, 1
  %.6.i.i.i.i21.i = ashr i64 %.154.i.i19.i, 63
  %.7.i.i.i.i22.i = xor i64 %.5.i.i.i.i20.i, %.6.i.i.i.i21.i
  %.43.i.i.i23.i = icmp ugt i64 %.7.i.i.i.i22.i, 127
  br i1 %.43.i.i.i23.i, label %B76.i.i.i39.i.preheader, label %B0.endif.i.i.i

B76.i.i.i39.i.preheader:
  br label %B76.i.i.i39.i

B76.i.i.i39.i:
  %folded.2.0.i.i.i40.i = phi i64 [ %.46.i.i.i42.i, %B76.i.i.i39.i ], [ %.7.i.i.i.i22.i, %B76.i.i.i39.i.preheader ]
  %size.2.0.i.i.i41.i = phi i64 [ %.50.i.i.i43.i, %B76.i.i.i39.i ], [ 1, %B76.i.i.i39.i.preheader ]
  %.46.i.i.i42.i = lshr i64 %folded.2.0.i.i.i40.i, 7
  %.50.i.i.i43.i = add nuw nsw i64 %size.2.0.i.i.i41.i, 1
  %.57.i.i.i44.i = icmp ugt i64 %folded.2.0.i.i.i40.i, 16383
  br i1 %.57.i.i.i44.i, label %B76.i.i.i39.i, label %B0.endif.i.i.i

B0.endif.i.i.i:
  %size.3.1.i.i.i24.i = phi i64 [ 1, %B20.i.i ], [ %.50.i.i.i43.i, %B76.i.i.i39.i ]
  %.235.i.i.i = getelementptr i64, ptr %8, i64 %.868.i
  %.236.i.i.i = load i64, ptr %.235.i.i.i, align 8
  %.5.i.i1.i.i.i = shl i64 %.236.i.i.i, 1
  %.6.i.i2.i.i.i = ashr i64 %.236.i.i.i, 63
  %.7.i.i3.i.i.i = xor i64 %.5.i.i1.i.i.i, %.6.i.i2.i.i.i
  %.43.i4.i.i.i = icmp ugt i64 %.7.i.i3.i.i.i, 127
  br i1 %.43.i4.i.i.i, label %B76.i7.i.i.i.preheader, label %B20.endif.i.i

B76.i7.i.i.i.preheader:
  br label %B76.i7.i.i.i

B76.i7.i.i.i:
  %folded.2.0.i8.i.i.i = phi i64 [ %.46.i10.i.i.i, %B76.i7.i.i.i ], [ %.7.i.i3.i.i.i, %B76.i7.i.i.i.preheader ]
  %size.2.0.i9.i.i.i = phi i64 [ %.50.i11.i.i.i, %B76.i7.i.i.i ], [ 1, %B76.i7.i.i.i.preheader ]
  %.46.i10.i.i.i = lshr i64 %folded.2.0.i8.i.i.i, 7
  %.50.i11.i.i.i = add nuw nsw i64 %size.2.0.i9.i.i.i, 1
  %.57.i12.i.i.i = icmp ugt i64 %folded.2.0.i8.i.i.i, 16383
  br i1 %.57.i12.i.i.i, label %B76.i7.i.i.i, label %B20.endif.i.i

B20.endif.i.i:
  %size.3.1.i5.i.i.i = phi i64 [ 1, %B0.endif.i.i.i ], [ %.50.i11.i.i.i, %B76.i7.i.i.i ]
  %.182.i.i.i = add nsw i64 %size.3.1.i.i.i24.i, %size.2.0.lcssa.i.i
  %.266.i.i.i = add nsw i64 %.182.i.i.i, %size.3.1.i5.i.i.i
  %.168.i.i = getelementptr i64, ptr %7, i64 %.868.i
  %.169.i.i = load i64, ptr %.168.i.i, align 8
  %.5.i.i.i26.i = shl i64 %.266.i.i.i, 1
  %.6.i.i.i27.i = ashr i64 %.266.i.i.i, 63
  %.7.i.i.i28.i = xor i64 %.5.i.i.i26.i, %.6.i.i.i27.i
  %.43.i.i29.i = icmp ugt i64 %.7.i.i.i28.i, 127
  br i1 %.43.i.i29.i, label %B76.i.i32.i.preheader, label %B20.endif.endif.i.i

B76.i.i32.i.preheader:
  br label %B76.i.i32.i

B76.i.i32.i:
  %folded.2.0.i.i33.i = phi i64 [ %.46.i.i35.i, %B76.i.i32.i ], [ %.7.i.i.i28.i, %B76.i.i32.i.preheader ]
  %size.2.0.i.i34.i = phi i64 [ %.50.i.i36.i, %B76.i.i32.i ], [ 1, %B76.i.i32.i.preheader ]
  %.46.i.i35.i = lshr i64 %folded.2.0.i.i33.i, 7
  %.50.i.i36.i = add nuw nsw i64 %size.2.0.i.i34.i, 1
  %.57.i.i37.i = icmp ugt i64 %folded.2.0.i.i33.i, 16383
  br i1 %.57.i.i37.i, label %B76.i.i32.i, label %B20.endif.endif.i.i

B20.endif.endif.i.i:
  %size.3.1.i.i30.i = phi i64 [ 1, %B20.endif.i.i ], [ %.50.i.i36.i, %B76.i.i32.i ]
  %.202.i.i = add i64 %.169.i.i, %.266.i.i.i
  %.203.i.i = add i64 %.202.i.i, %size.3.1.i.i30.i
  %.205.i.not.i = icmp sgt i64 %.203.i.i, %arg.p7
  br i1 %.205.i.not.i, label %B624.i, label %B1076.i

B624.i:
  %sunkaddr157.i = shl i64 %.107.i.i, 3
  %sunkaddr158.i = getelementptr inbounds i8, ptr %0, i64 %sunkaddr157.i
  %.1008.i = load i64, ptr %sunkaddr158.i, align 8
  %.1009.i = icmp slt i64 %.1008.i, 0
  br i1 %.1009.i, label %B662.i, label %B922.i

B662.i:
  %sunkaddr160.i = getelementptr i8, ptr %1, i64 %sunkaddr157.i
  %.1078.i = load i64, ptr %sunkaddr160.i, align 8
  %.1079.i = icmp slt i64 %.1078.i, 0
  br i1 %.1079.i, label %B700.i, label %B922.i

B700.i:
  %sunkaddr162.i = getelementptr inbounds i8, ptr %2, i64 %sunkaddr157.i
  %.1135.i = load i64, ptr %sunkaddr162.i, align 8
  %sunkaddr163.i = shl i64 %slot.4.0.i.i, 3
  %sunkaddr164.i = getelementptr i8, ptr %arg.p5, i64 %sunkaddr163.i
  store i64 -1, ptr %sunkaddr164.i, align 8
  %.1198.i = icmp slt i64 %.1135.i, 0
  %.1199.i = select i1 %.1198.i, i64 %arg.p3_1, i64 0
  %.1200.i = add i64 %.1199.i, %.1135.i
  %.1276.i = getelementptr i64, ptr %4, i64 %.1200.i
  %.1277.i = load i64, ptr %.1276.i, align 8
  %.1280.i = icmp eq i64 %.1277.i, 0
  br i1 %.1280.i, label %B700.endif.endif.i, label %B700.else.if.i

B922.i:
  %sunkaddr167.i.pre-phi = phi i64 [ %sunkaddr157.i, %B20.endif.endif.i83.i ], [ %sunkaddr157.i, %B624.i ], [ %sunkaddr157.i, %B662.i ], [ %.pre117, %B552.i.B922.sink.split.i_crit_edge ], [ %sunkaddr157.i, %B700.endif.endif.i ]
  %slot.2.11271.i = phi i64 [ %.232.i.i, %B20.endif.endif.i83.i ], [ %slot.4.0.i.i, %B624.i ], [ %slot.4.0.i.i, %B662.i ], [ %slot.4.0.i.i, %B552.i.B922.sink.split.i_crit_edge ], [ %.232.i.i, %B700.endif.endif.i ]
  %sunkaddr122 = getelementptr i8, ptr %arg.p10, i64 8
  %.1534.i = load i64, ptr %sunkaddr122, align 8
  %.1537.i = add nsw i64 %.1534.i, 1
  store i64 %.1537.i, ptr %sunkaddr122, align 8
  %sunkaddr123 = getelementptr i8, ptr %arg.p10, i64 16
  %.1597.i = load i64, ptr %sunkaddr123, align 8
  %.1598.i = add nsw i64 %.1597.i, 61
  store i64 %.1598.i, ptr %sunkaddr123, align 8
  %.1643.i = icmp slt i64 %slot.2.11271.i, 0
  %.1644.i = select i1 %.1643.i, i64 %arg.p5_0, i64 0
  %54 = getelementptr i64, ptr %arg.p5, i64 %slot.2.11271.i
  %.1658.i = getelementptr i64, ptr %54, i64 %.1644.i
  store i64 %.1534.i, ptr %.1658.i, align 8
  %sunkaddr168.i = getelementptr i8, ptr %2, i64 %sunkaddr167.i.pre-phi
  %.113.i.i = load i64, ptr %sunkaddr168.i, align 8
  %.142.i.i = icmp slt i64 %.1534.i, 0
  %.143.i.i = select i1 %.142.i.i, i64 %arg.p6_1, i64 0
  %.144.i.i = add i64 %.143.i.i, %.1534.i
  %.165.i113.i = getelementptr i64, ptr %arg.p6, i64 %.144.i.i
  store i64 %.113.i.i, ptr %.165.i113.i, align 8
  %.195.i.i = icmp slt i64 %.113.i.i, 0
  %.196.i.i = select i1 %.195.i.i, i64 %arg.p3_1, i64 0
  %55 = getelementptr i64, ptr %arg.p3, i64 %.113.i.i
  %.218.i.i = getelementptr i64, ptr %55, i64 %.196.i.i
  %.219.i.i = load i64, ptr %.218.i.i, align 8
  %.225.i114.i = sub nsw i64 %slot.2.11271.i, %.219.i.i
  %.277.i.i = getelementptr i64, ptr %22, i64 %.144.i.i
  store i64 %.225.i114.i, ptr %.277.i.i, align 8
  %.330.i.i = getelementptr i64, ptr %7, i64 %.144.i.i
  store i64 61, ptr %.330.i.i, align 8
  %.383.i.i = getelementptr i64, ptr %8, i64 %.144.i.i
  store i64 0, ptr %.383.i.i, align 8
  %.436.i115.i = getelementptr i64, ptr %10, i64 %.107.i.i
  %.437.i.i = load i64, ptr %.436.i115.i, align 8
  %.489.i.i = getelementptr i64, ptr %21, i64 %.144.i.i
  store i64 %.437.i.i, ptr %.489.i.i, align 8
  %.600.i.i = getelementptr i64, ptr %9, i64 %.144.i.i
  store i64 %.437.i.i, ptr %.600.i.i, align 8
  %.653.i.i = getelementptr i64, ptr %23, i64 %.144.i.i
  store i64 0, ptr %.653.i.i, align 8
  br label %B1076.i

B1076.i:
  %batch.3.1.i = phi i64 [ %.868.i, %B20.endif.endif.i.i ], [ %.1534.i, %B922.i ], [ %.1436.i, %B20.endif.endif.i83.i ]
  %56 = getelementptr i64, ptr %10, i64 %.28213631378.i
  %.94.i119.i = getelementptr i64, ptr %56, i64 %.106.i.i
  %.95.i120.i = load i64, ptr %.94.i119.i, align 8
  %.129.i121.i = icmp slt i64 %batch.3.1.i, 0
  %.130.i.i = select i1 %.129.i121.i, i64 %arg.p6_1, i64 0
  %.131.i.i = add i64 %.130.i.i, %batch.3.1.i
  %.152.i.i = getelementptr i64, ptr %21, i64 %.131.i.i
  %.153.i.i = load i64, ptr %.152.i.i, align 8
  %.154.i122.i = sub nsw i64 %.95.i120.i, %.153.i.i
  %.5.i.i.i123.i = shl i64 %.154.i122.i, 1
  %.6.i.i.i124.i = ashr i64 %.154.i122.i, 63
  %.7.i.i.i125.i = xor i64 %.5.i.i.i123.i, %.6.i.i.i124.i
  %.43.i.i126.i = icmp ugt i64 %.7.i.i.i125.i, 127
  br i1 %.43.i.i126.i, label %B76.i.i130.i.preheader, label %B0.endif.i127.i

B76.i.i130.i.preheader:
  br label %B76.i.i130.i

B76.i.i130.i:
  %folded.2.0.i.i131.i = phi i64 [ %.46.i.i133.i, %B76.i.i130.i ], [ %.7.i.i.i125.i, %B76.i.i130.i.preheader ]
  %size.2.0.i.i132.i = phi i64 [ %.50.i.i134.i, %B76.i.i130.i ], [ 1, %B76.i.i130.i.preheader ]
  %.46.i.i133.i = lshr i64 %folded.2.0.i.i131.i, 7
  %.50.i.i134.i = add nuw nsw i64 %size.2.0.i.i132.i, 1
  %.57.i.i135.i = icmp ugt i64 %folded.2.0.i.i131.i, 16383
  br i1 %.57.i.i135.i, label %B76.i.i130.i, label %B0.endif.i127.i

B0.endif.i127.i:
  %size.3.1.i.i128.i = phi i64 [ 1, %B1076.i ], [ %.50.i.i134.i, %B76.i.i130.i ]
  %.235.i.i = getelementptr i64, ptr %8, i64 %.131.i.i
  %.236.i.i = load i64, ptr %.235.i.i, align 8
  %.5.i.i1.i.i = shl i64 %.236.i.i, 1
  %.6.i.i2.i.i = ashr i64 %.236.i.i, 63
  %.7.i.i3.i.i = xor i64 %.5.i.i1.i.i, %.6.i.i2.i.i
  %.43.i4.i.i = icmp ugt i64 %.7.i.i3.i.i, 127
  br i1 %.43.i4.i.i, label %B76.i7.i.i.preheader, label %B1076.endif.i

B76.i7.i.i.preheader:
  br label %B76.i7.i.i

B76.i7.i.i:
  %folded.2.0.i8.i.i = phi i64 [ %.46.i10.i.i, %B76.i7.i.i ], [ %.7.i.i3.i.i, %B76.i7.i.i.preheader ]
  %size.2.0.i9.i.i = phi i64 [ %.50.i11.i.i, %B76.i7.i.i ], [ 1, %B76.i7.i.i.preheader ]
  %.46.i10.i.i = lshr i64 %folded.2.0.i8.i.i, 7
  %.50.i11.i.i = add nuw nsw i64 %size.2.0.i9.i.i, 1
  %.57.i12.i.i = icmp ugt i64 %folded.2.0.i8.i.i, 16383
  br i1 %.57.i12.i.i, label %B76.i7.i.i, label %B1076.endif.i

B1440.i:
  store i64 %arg.p1_1, ptr %arg.p10, align 8
  br label %common.ret

B284.endif.i:
  %slot.4.0.i.i = phi i64 [ %.232.i.i.i, %B422.endif.i.i ], [ %.706.i.i, %B224.endif.endif.i.i ], [ %.351.i.i, %B148.i.i ], [ -1, %B136.i.i ]
  %.594.i = icmp slt i64 %slot.4.0.i.i, 0
  br i1 %.594.i, label %common.ret, label %B378.i

B378.endif.i:
  %size.2.0.lcssa.i.i = phi i64 [ %.281.i.i, %B0.endif.endif.endif.endif.i.i ], [ %.621.i.i, %B256.endif.endif.i.i ]
  %.699.i = add nsw i64 %size.2.0.lcssa.i.i, 2
  %.5.i.i.i = shl i64 %.699.i, 1
  %.6.i.i.i = ashr i64 %.699.i, 63
  %.7.i.i.i = xor i64 %.5.i.i.i, %.6.i.i.i
  %.43.i.i = icmp ugt i64 %.7.i.i.i, 127
  br i1 %.43.i.i, label %B76.i.i.preheader, label %B378.endif.endif.i

B76.i.i.preheader:
  br label %B76.i.i

B76.i.i:
  %folded.2.0.i.i = phi i64 [ %.46.i.i, %B76.i.i ], [ %.7.i.i.i, %B76.i.i.preheader ]
  %size.2.0.i.i = phi i64 [ %.50.i.i, %B76.i.i ], [ 1, %B76.i.i.preheader ]
  %.46.i.i = lshr i64 %folded.2.0.i.i, 7
  %.50.i.i = add nuw nsw i64 %size.2.0.i.i, 1
  %.57.i.i = icmp ugt i64 %folded.2.0.i.i, 16383
  br i1 %.57.i.i, label %B76.i.i, label %B378.endif.endif.i

B378.endif.endif.i:
  %size.3.1.i.i = phi i64 [ 1, %B378.endif.i ], [ %.50.i.i, %B76.i.i ]
  %.726.i = add i64 %size.2.0.lcssa.i.i, 63
  %.727.i = add i64 %.726.i, %size.3.1.i.i
  %.733.i = icmp sgt i64 %.727.i, %arg.p8
  br i1 %.733.i, label %B488.i, label %B552.i

B700.else.if.i:
  %sunkaddr124 = mul i64 %.1200.i, 8
  %sunkaddr125 = getelementptr i8, ptr %3, i64 %sunkaddr124
  %.1222.i = load i64, ptr %sunkaddr125, align 8
  %.1223.i = add nsw i64 %.1222.i, 1
  %57 = or i64 %.1223.i, %.1277.i
  %58 = icmp ult i64 %57, 4294967296
  br i1 %58, label %59, label %64

59:
  %60 = trunc i64 %.1277.i to i32
  %61 = trunc i64 %.1223.i to i32
  %62 = urem i32 %61, %60
  %63 = zext i32 %62 to i64
  br label %75

64:
  %65 = or i64 %.1223.i, %.1277.i
  %66 = and i64 %65, -4294967296
  %67 = icmp eq i64 %66, 0
  br i1 %67, label %68, label %73

68:
  %69 = trunc i64 %.1277.i to i32
  %70 = trunc i64 %.1223.i to i32
  %71 = urem i32 %70, %69
  %72 = zext i32 %71 to i64
  br label %75

73:
  %74 = srem i64 %.1223.i, %.1277.i
  br label %75

75:
  %76 = phi i64 [ %63, %59 ], [ %72, %68 ], [ %74, %73 ]
  %.1298.i = xor i64 %76, %.1277.i
  %.1299.i = icmp slt i64 %.1298.i, 0
  %.1300.i = icmp ne i64 %76, 0
  %.1301.i = and i1 %.1300.i, %.1299.i
  %.1308.i = select i1 %.1301.i, i64 %.1277.i, i64 0
  %spec.select.i = add i64 %.1308.i, %76
  br label %B700.endif.endif.i

B700.endif.endif.i:
  %rem.0.i = phi i64 [ %spec.select.i, %75 ], [ 0, %B700.i ]
  %sunkaddr126 = mul i64 %.1200.i, 8
  %sunkaddr127 = getelementptr i8, ptr %3, i64 %sunkaddr126
  store i64 %rem.0.i, ptr %sunkaddr127, align 8
  %.86.i.i = getelementptr i64, ptr %12, i64 %.1200.i
  %.87.i.i = load i64, ptr %.86.i.i, align 8
  %.141.i.i = add nsw i64 %.87.i.i, %rem.0.i
  %.154.i.i = icmp slt i64 %.141.i.i, 0
  %.155.i.i = select i1 %.154.i.i, i64 %arg.p4_0, i64 0
  %77 = getelementptr i64, ptr %arg.p4, i64 %.141.i.i
  %.169.i111.i = getelementptr i64, ptr %77, i64 %.155.i.i
  %.170.i.i = load i64, ptr %.169.i111.i, align 8
  %.225.i.i = getelementptr i64, ptr %arg.p3, i64 %.1200.i
  %.226.i.i = load i64, ptr %.225.i.i, align 8
  %.232.i.i = add nsw i64 %.226.i.i, %.170.i.i
  %.1420.i = icmp slt i64 %.232.i.i, 0
  %.1421.i = select i1 %.1420.i, i64 %arg.p5_0, i64 0
  %78 = getelementptr i64, ptr %arg.p5, i64 %.232.i.i
  %.1435.i = getelementptr i64, ptr %78, i64 %.1421.i
  %.1436.i = load i64, ptr %.1435.i, align 8
  %.60.i45.i = icmp sgt i64 %.1436.i, -1
  br i1 %.60.i45.i, label %B20.i49.i, label %B922.i

B20.i49.i:
  %sunkaddr173.i = shl i64 %.106.i.i, 3
  %sunkaddr174.i = getelementptr inbounds i8, ptr %53, i64 %sunkaddr173.i
  %.95.i.i54.i = load i64, ptr %sunkaddr174.i, align 8
  %.152.i.i56.i = getelementptr i64, ptr %21, i64 %.1436.i
  %.153.i.i57.i = load i64, ptr %.152.i.i56.i, align 8
  %.154.i.i58.i = sub nsw i64 %.95.i.i54.i, %.153.i.i57.i
  %.5.i.i.i.i59.i = shl i64 %.154.i.i58.i, 1
  %.6.i.i.i.i60.i = ashr i64 %.154.i.i58.i, 63
  %.7.i.i.i.i61.i = xor i64 %.5.i.i.i.i59.i, %.6.i.i.i.i60.i
  %.43.i.i.i62.i = icmp ugt i64 %.7.i.i.i.i61.i, 127
  br i1 %.43.i.i.i62.i, label %B76.i.i.i103.i.preheader, label %B0.endif.i.i63.i

B76.i.i.i103.i.preheader:
  br label %B76.i.i.i103.i

B76.i.i.i103.i:
  %folded.2.0.i.i.i104.i = phi i64 [ %.46.i.i.i106.i, %B76.i.i.i103.i ], [ %.7.i.i.i.i61.i, %B76.i.i.i103.i.preheader ]
  %size.2.0.i.i.i105.i = phi i64 [ %.50.i.i.i107.i, %B76.i.i.i103.i ], [ 1, %B76.i.i.i103.i.preheader ]
  %.46.i.i.i106.i = lshr i64 %folded.2.0.i.i.i104.i, 7
  %.50.i.i.i107.i = add nuw nsw i64 %size.2.0.i.i.i105.i, 1
  %.57.i.i.i108.i = icmp ugt i64 %folded.2.0.i.i.i104.i, 16383
  br i1 %.57.i.i.i108.i, label %B76.i.i.i103.i, label %B0.endif.i.i63.i

B0.endif.i.i63.i:
  %size.3.1.i.i.i64.i = phi i64 [ 1, %B20.i49.i ], [ %.50.i.i.i107.i, %B76.i.i.i103.i ]
  %.235.i.i66.i = getelementptr i64, ptr %8, i64 %.1436.i
  %.236.i.i67.i = load i64, ptr %.235.i.i66.i, align 8
  %.5.i.i1.i.i68.i = shl i64 %.236.i.i67.i, 1
  %.6.i.i2.i.i69.i = ashr i64 %.236.i.i67.i, 63
  %.7.i.i3.i.i70.i = xor i64 %.5.i.i1.i.i68.i, %.6.i.i2.i.i69.i
  %.43.i4.i.i71.i = icmp ugt i64 %.7.i.i3.i.i70.i, 127
  br i1 %.43.i4.i.i71.i, label %B76.i7.i.i96.i.preheader, label %B20.endif.i72.i

B76.i7.i.i96.i.preheader:
  br label %B76.i7.i.i96.i

B76.i7.i.i96.i:
  %folded.2.0.i8.i.i97.i = phi i64 [ %.46.i10.i.i99.i, %B76.i7.i.i96.i ], [ %.7.i.i3.i.i70.i, %B76.i7.i.i96.i.preheader ]
  %size.2.0.i9.i.i98.i = phi i64 [ %.50.i11.i.i100.i, %B76.i7.i.i96.i ], [ 1, %B76.i7.i.i96.i.preheader ]
  %.46.i10.i.i99.i = lshr i64 %folded.2.0.i8.i.i97.i, 7
  %.50.i11.i.i100.i = add nuw nsw i64 %size.2.0.i9.i.i98.i, 1
  %.57.i12.i.i101.i = icmp ugt i64 %folded.2.0.i8.i.i97.i, 16383
  br i1 %.57.i12.i.i101.i, label %B76.i7.i.i96.i, label %B20.endif.i72.i

B20.endif.i72.i:
  %size.3.1.i5.i.i73.i = phi i64 [ 1, %B0.endif.i.i63.i ], [ %.50.i11.i.i100.i, %B76.i7.i.i96.i ]
  %.182.i.i74.i = add nsw i64 %size.3.1.i.i.i64.i, %size.2.0.lcssa.i.i
  %.266.i.i75.i = add nsw i64 %.182.i.i74.i, %size.3.1.i5.i.i73.i
  %.168.i77.i = getelementptr i64, ptr %7, i64 %.1436.i
  %.169.i78.i = load i64, ptr %.168.i77.i, align 8
  %.5.i.i.i79.i = shl i64 %.266.i.i75.i, 1
  %.6.i.i.i80.i = ashr i64 %.266.i.i75.i, 63
  %.7.i.i.i81.i = xor i64 %.5.i.i.i79.i, %.6.i.i.i80.i
  %.43.i.i82.i = icmp ugt i64 %.7.i.i.i81.i, 127
  br i1 %.43.i.i82.i, label %B76.i.i89.i.preheader, label %B20.endif.endif.i83.i

B76.i.i89.i.preheader:
  br label %B76.i.i89.i

B76.i.i89.i:
  %folded.2.0.i.i90.i = phi i64 [ %.46.i.i92.i, %B76.i.i89.i ], [ %.7.i.i.i81.i, %B76.i.i89.i.preheader ]
  %size.2.0.i.i91.i = phi i64 [ %.50.i.i93.i, %B76.i.i89.i ], [ 1, %B76.i.i89.i.preheader ]
  %.46.i.i92.i = lshr i64 %folded.2.0.i.i90.i, 7
  %.50.i.i93.i = add nuw nsw i64 %size.2.0.i.i91.i, 1
  %.57.i.i94.i = icmp ugt i64 %folded.2.0.i.i90.i, 16383
  br i1 %.57.i.i94.i, label %B76.i.i89.i, label %B20.endif.endif.i83.i

B20.endif.endif.i83.i:
  %size.3.1.i.i84.i = phi i64 [ 1, %B20.endif.i72.i ], [ %.50.i.i93.i, %B76.i.i89.i ]
  %.202.i85.i = add i64 %.169.i78.i, %.266.i.i75.i
  %.203.i86.i = add i64 %.202.i85.i, %size.3.1.i.i84.i
  %.205.i87.not.i = icmp sgt i64 %.203.i86.i, %arg.p7
  br i1 %.205.i87.not.i, label %B922.i, label %B1076.i

B1076.endif.i:
  %size.3.1.i5.i.i = phi i64 [ 1, %B0.endif.i127.i ], [ %.50.i11.i.i, %B76.i7.i.i ]
  %.182.i.i = add nsw i64 %size.3.1.i.i128.i, %size.2.0.lcssa.i.i
  %.266.i.i = add nsw i64 %.182.i.i, %size.3.1.i5.i.i
  %.5.i.i5.i = shl i64 %.266.i.i, 1
  %.6.i.i6.i = ashr i64 %.266.i.i, 63
  %.7.i.i7.i = xor i64 %.5.i.i5.i, %.6.i.i6.i
  %.43.i8.i = icmp ugt i64 %.7.i.i7.i, 127
  br i1 %.43.i8.i, label %B76.i11.i.preheader, label %B1076.endif.endif.endif.i

B76.i11.i.preheader:
  br label %B76.i11.i

B76.i11.i:
  %folded.2.0.i12.i = phi i64 [ %.46.i14.i, %B76.i11.i ], [ %.7.i.i7.i, %B76.i11.i.preheader ]
  %size.2.0.i13.i = phi i64 [ %.50.i15.i, %B76.i11.i ], [ 1, %B76.i11.i.preheader ]
  %.46.i14.i = lshr i64 %folded.2.0.i12.i, 7
  %.50.i15.i = add nuw nsw i64 %size.2.0.i13.i, 1
  %.57.i16.i = icmp ugt i64 %folded.2.0.i12.i, 16383
  br i1 %.57.i16.i, label %B76.i11.i, label %B1076.endif.endif.endif.i

B1076.endif.endif.endif.i:
  %size.3.1.i9.i = phi i64 [ 1, %B1076.endif.i ], [ %.50.i15.i, %B76.i11.i ]
  %.1772.i = add nsw i64 %size.3.1.i9.i, %.266.i.i
  %.1827.i = getelementptr i64, ptr %5, i64 %.107.i.i
  store i64 %batch.3.1.i, ptr %.1827.i, align 8
  %.1882.i = getelementptr i64, ptr %6, i64 %.107.i.i
  store i64 %.266.i.i, ptr %.1882.i, align 8
  %.1937.i = getelementptr i64, ptr %7, i64 %.131.i.i
  %.1938.i = load i64, ptr %.1937.i, align 8
  %.1939.i = add nsw i64 %.1938.i, %.1772.i
  store i64 %.1939.i, ptr %.1937.i, align 8
  %sunkaddr175.i = shl i64 %.131.i.i, 3
  %sunkaddr176.i = getelementptr i8, ptr %8, i64 %sunkaddr175.i
  %.2046.i = load i64, ptr %sunkaddr176.i, align 8
  %.2047.i = add nsw i64 %.2046.i, 1
  store i64 %.2047.i, ptr %sunkaddr176.i, align 8
  %.2153.i = getelementptr i64, ptr %9, i64 %.131.i.i
  %.2154.i = load i64, ptr %.2153.i, align 8
  %.2210.i = getelementptr i64, ptr %10, i64 %.107.i.i
  %.2211.i = load i64, ptr %.2210.i, align 8
  %.13.i.i = tail call i64 @llvm.smax.i64(i64 %.2211.i, i64 %.2154.i)
  store i64 %.13.i.i, ptr %.2153.i, align 8
  %sunkaddr128 = getelementptr i8, ptr %arg.p10, i64 16
  %.2326.i = load i64, ptr %sunkaddr128, align 8
  %.2327.i = add nsw i64 %.2326.i, %.1772.i
  store i64 %.2327.i, ptr %sunkaddr128, align 8
  %.276.i = icmp ugt i64 %.27513491380.i, 1
  br i1 %.276.i, label %B84.i, label %B1440.i
}

define i32 @write_rows(ptr %retptr, ptr %excinfo, ptr %arg.p0, i64 %arg.p0_0, ptr %arg.p1, i64 %arg.p1_0, ptr %arg.p2, i64 %arg.p2_0, ptr %arg.p3, i64 %arg.p3_0, ptr %arg.p4, i64 %arg.p4_0, i64 %arg.p4_1, ptr %arg.p5, i64 %arg.p5_0, i64 %arg.p5_1, ptr %arg.p6, i64 %arg.p6_0, i64 %arg.p6_1, i64 %arg.p7, i64 %arg.p8, ptr %arg.p9, i64 %arg.p9_0) {
B0.endif.endif.endif.endif.endif.endif.endif.endif:
  %.172.i = sub i64 %arg.p8, %arg.p7
  %.218664.not.i = icmp slt i64 %.172.i, 1
  br i1 %.218664.not.i, label %common.ret, label %B40.lr.ph.i

common.ret:
  store i64 0, ptr %retptr, align 8
  ret i32 0

B40.lr.ph.i:
  %.idx.i = mul i64 %arg.p4_1, 80
  %0 = getelementptr i8, ptr %arg.p4, i64 %.idx.i
  %.idx578.i = mul i64 %arg.p6_1, 48
  %1 = getelementptr i8, ptr %arg.p6, i64 %.idx578.i
  %.idx579.i = mul i64 %arg.p4_1, 72
  %2 = getelementptr i8, ptr %arg.p4, i64 %.idx579.i
  %.idx580.i = mul i64 %arg.p4_1, 48
  %3 = getelementptr i8, ptr %arg.p4, i64 %.idx580.i
  %.idx581.i = shl i64 %arg.p6_1, 5
  %4 = getelementptr i8, ptr %arg.p6, i64 %.idx581.i
  %.idx582.i = mul i64 %arg.p6_1, 56
  %5 = getelementptr i8, ptr %arg.p6, i64 %.idx582.i
  %6 = getelementptr i64, ptr %arg.p4, i64 %arg.p4_1
  %.idx583.i = shl i64 %arg.p4_1, 4
  %7 = getelementptr i8, ptr %arg.p4, i64 %.idx583.i
  %.idx584.i = mul i64 %arg.p4_1, 24
  %8 = getelementptr i8, ptr %arg.p4, i64 %.idx584.i
  %.idx585.i = mul i64 %arg.p4_1, 40
  %9 = getelementptr i8, ptr %arg.p4, i64 %.idx585.i
  %.idx586.i = shl i64 %arg.p4_1, 5
  %10 = getelementptr i8, ptr %arg.p4, i64 %.idx586.i
  %11 = getelementptr i64, ptr %arg.p5, i64 %arg.p5_1
  %.idx588.i = shl i64 %arg.p5_1, 4
  %12 = getelementptr i8, ptr %arg.p5, i64 %.idx588.i
  %.idx589.i = mul i64 %arg.p5_1, 24
  %13 = getelementptr i8, ptr %arg.p5, i64 %.idx589.i
  br label %B40.i

B40.i:
  %.217630668.i = phi i64 [ %.172.i, %B40.lr.ph.i ], [ %.227.i, %B870.i ]
  %.224638667.i = phi i64 [ %arg.p7, %B40.lr.ph.i ], [ %.231.i, %B870.i ]
  %.227.i = add nsw i64 %.217630668.i, -1
  %.231.i = add i64 %.224638667.i, 1
  %.285.i = icmp slt i64 %.224638667.i, 0
  %.286.i = select i1 %.285.i, i64 %arg.p4_1, i64 0
  %.287.i = add i64 %.286.i, %.224638667.i
  %.308.i = getelementptr i64, ptr %0, i64 %.287.i
  %.309.i = load i64, ptr %.308.i, align 8
  %.344.i = icmp slt i64 %.309.i, 0
  %.345.i = select i1 %.344.i, i64 %arg.p6_1, i64 0
  %.346.i = add i64 %.345.i, %.309.i
  %.367.i = getelementptr i64, ptr %1, i64 %.346.i
  %.368.i = load i64, ptr %.367.i, align 8
  %.421.i = getelementptr i64, ptr %2, i64 %.287.i
  %.422.i = load i64, ptr %.421.i, align 8
  %.5.i.i.i = shl i64 %.422.i, 1
  %.6.i.i.i = ashr i64 %.422.i, 63
  %.7.i.i.i = xor i64 %.5.i.i.i, %.6.i.i.i
  %.61.i.i = icmp ugt i64 %.7.i.i.i, 127
  br i1 %.61.i.i, label %B46.i.i.preheader, label %B40.endif.i

B46.i.i.preheader:
  br label %B46.i.i

B46.i.i:
  %position.2.0.i.i = phi i64 [ %.99.i.i, %B46.i.i ], [ %.368.i, %B46.i.i.preheader ]
  %folded.2.0.i.i = phi i64 [ %.105.i.i, %B46.i.i ], [ %.7.i.i.i, %B46.i.i.preheader ]
  %14 = trunc i64 %folded.2.0.i.i to i8
  %.66.i.i = or i8 %14, -128
  %.81.i.i = icmp slt i64 %position.2.0.i.i, 0
  %.82.i.i = select i1 %.81.i.i, i64 %arg.p9_0, i64 0
  %scevgep.i.i = getelementptr i8, ptr %arg.p9, i64 %.82.i.i
  %scevgep1.i.i = getelementptr i8, ptr %scevgep.i.i, i64 %position.2.0.i.i
  store i8 %.66.i.i, ptr %scevgep1.i.i, align 1
  %.99.i.i = add i64 %position.2.0.i.i, 1
  %.105.i.i = lshr i64 %folded.2.0.i.i, 7
  %.112.i.i = icmp ugt i64 %folded.2.0.i.i, 16383
  br i1 %.112.i.i, label %B46.i.i, label %B40.endif.i

B670.i:
  %position.8.1627.i = phi i64 [ %position.1.2.0.i154.i, %B668.backedge.i ], [ %.159.i59.i, %B670.preheader.i ]
  %.1199620626.i = phi i64 [ %.1209.i, %B668.backedge.i ], [ %.1034.i, %B670.preheader.i ]
  %.1206622625.i = phi i64 [ %.1213.i, %B668.backedge.i ], [ %.1119.i, %B670.preheader.i ]
  %.1209.i = add nsw i64 %.1199620626.i, -1
  %.1213.i = add i64 %.1206622625.i, 1
  %.1267.i = icmp slt i64 %.1206622625.i, 0
  %.1268.i = select i1 %.1267.i, i64 %arg.p5_1, i64 0
  %.1269.i = add i64 %.1268.i, %.1206622625.i
  %.1290.i = getelementptr i64, ptr %arg.p5, i64 %.1269.i
  %.1291.i = load i64, ptr %.1290.i, align 8
  %.1344.i = getelementptr i64, ptr %11, i64 %.1269.i
  %.1345.i = load i64, ptr %.1344.i, align 8
  %.5.i.i.i.i = shl i64 %.1345.i, 1
  %.6.i.i.i.i = ashr i64 %.1345.i, 63
  %.7.i.i.i.i = xor i64 %.5.i.i.i.i, %.6.i.i.i.i
  %.61.i.i.i = icmp ugt i64 %.7.i.i.i.i, 127
  br i1 %.61.i.i.i, label %B46.i.i.i.preheader, label %B0.endif.i.i

B46.i.i.i.preheader:
  br label %B46.i.i.i

B46.i.i.i:
  %position.2.0.i.i.i = phi i64 [ %.99.i.i.i, %B46.i.i.i ], [ %position.8.1627.i, %B46.i.i.i.preheader ]
  %folded.2.0.i.i.i = phi i64 [ %.105.i.i.i, %B46.i.i.i ], [ %.7.i.i.i.i, %B46.i.i.i.preheader ]
  %15 = trunc i64 %folded.2.0.i.i.i to i8
  %.66.i.i.i = or i8 %15, -128
  %.81.i.i.i = icmp slt i64 %position.2.0.i.i.i, 0
  %.82.i.i.i = select i1 %.81.i.i.i, i64 %arg.p9_0, i64 0
  %scevgep.i.i.i = getelementptr i8, ptr %arg.p9, i64 %.82.i.i.i
  %scevgep1.i.i.i = getelementptr i8, ptr %scevgep.i.i.i, i64 %position.2.0.i.i.i
  store i8 %.66.i.i.i, ptr %scevgep1.i.i.i, align 1
  %.99.i.i.i = add i64 %position.2.0.i.i.i, 1
  %.105.i.i.i = lshr i64 %folded.2.0.i.i.i, 7
  %.112.i.i.i = icmp ugt i64 %folded.2.0.i.i.i, 16383
  br i1 %.112.i.i.i, label %B46.i.i.i, label %B0.endif.i.i

B50.i.i:
  %.97.i.i = getelementptr i8, ptr %arg.p9, i64 %.159.i.i.i
  %.98.i.i = getelementptr i8, ptr %arg.p2, i64 %.1291.i
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %.97.i.i, ptr align 1 %.98.i.i, i64 %.1345.i, i1 false)
  %.115.i.i = add nsw i64 %.159.i.i.i, %.1345.i
  br label %B670.endif.i

B0.endif.i.i:
  %position.3.1.i.i.i = phi i64 [ %position.8.1627.i, %B670.i ], [ %.99.i.i.i, %B46.i.i.i ]
  %folded.3.1.i.i.i = phi i64 [ %.7.i.i.i.i, %B670.i ], [ %.105.i.i.i, %B46.i.i.i ]
  %.119.i.i.i = trunc i64 %folded.3.1.i.i.i to i8
  %.136.i.i.i = icmp slt i64 %position.3.1.i.i.i, 0
  %.137.i.i.i = select i1 %.136.i.i.i, i64 %arg.p9_0, i64 0
  %16 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i.i.i
  %.151.i.i.i = getelementptr i8, ptr %16, i64 %.137.i.i.i
  store i8 %.119.i.i.i, ptr %.151.i.i.i, align 1
  %.159.i.i.i = add nsw i64 %position.3.1.i.i.i, 1
  %.78.i.i = icmp sgt i64 %.1345.i, 0
  br i1 %.78.i.i, label %B50.i.i, label %B670.endif.i

B870.i:
  %position.8.1.lcssa.i = phi i64 [ %.159.i59.i, %B40.endif.endif.endif.endif.endif.endif.endif.i ], [ %position.1.2.0.i154.i, %B668.backedge.i ]
  %sunkaddr.i = shl i64 %.346.i, 3
  %sunkaddr172.i = getelementptr inbounds i8, ptr %1, i64 %sunkaddr.i
  store i64 %position.8.1.lcssa.i, ptr %sunkaddr172.i, align 8
  %sunkaddr174.i = getelementptr inbounds i8, ptr %5, i64 %sunkaddr.i
  %.1638.i = load i64, ptr %sunkaddr174.i, align 8
  %.1639.i = add nsw i64 %.1638.i, 1
  store i64 %.1639.i, ptr %sunkaddr174.i, align 8
  %.218.i = icmp sgt i64 %.217630668.i, 1
  br i1 %.218.i, label %B40.i, label %common.ret

B40.endif.i:
  %position.3.1.i.i = phi i64 [ %.368.i, %B40.i ], [ %.99.i.i, %B46.i.i ]
  %folded.3.1.i.i = phi i64 [ %.7.i.i.i, %B40.i ], [ %.105.i.i, %B46.i.i ]
  %.119.i.i = trunc i64 %folded.3.1.i.i to i8
  %.136.i.i = icmp slt i64 %position.3.1.i.i, 0
  %.137.i.i = select i1 %.136.i.i, i64 %arg.p9_0, i64 0
  %17 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i.i
  %.151.i.i = getelementptr i8, ptr %17, i64 %.137.i.i
  store i8 %.119.i.i, ptr %.151.i.i, align 1
  %.464.i = icmp slt i64 %position.3.1.i.i, -1
  %.465.i = select i1 %.464.i, i64 %arg.p9_0, i64 0
  %18 = getelementptr i8, ptr %17, i64 1
  %.479.i = getelementptr i8, ptr %18, i64 %.465.i
  store i8 0, ptr %.479.i, align 1
  %.533.i = getelementptr i64, ptr %3, i64 %.287.i
  %.534.i = load i64, ptr %.533.i, align 8
  %.588.i = getelementptr i64, ptr %4, i64 %.346.i
  %.589.i = load i64, ptr %.588.i, align 8
  %.590.i = sub nsw i64 %.534.i, %.589.i
  %.592.i = add nsw i64 %position.3.1.i.i, 2
  %.5.i.i1.i = shl i64 %.590.i, 1
  %.6.i.i2.i = ashr i64 %.590.i, 63
  %.7.i.i3.i = xor i64 %.5.i.i1.i, %.6.i.i2.i
  %.61.i4.i = icmp ugt i64 %.7.i.i3.i, 127
  br i1 %.61.i4.i, label %B46.i13.i.preheader, label %B40.endif.endif.i

B46.i13.i.preheader:
  br label %B46.i13.i

B46.i13.i:
  %position.2.0.i14.i = phi i64 [ %.99.i21.i, %B46.i13.i ], [ %.592.i, %B46.i13.i.preheader ]
  %folded.2.0.i15.i = phi i64 [ %.105.i22.i, %B46.i13.i ], [ %.7.i.i3.i, %B46.i13.i.preheader ]
  %19 = trunc i64 %folded.2.0.i15.i to i8
  %.66.i16.i = or i8 %19, -128
  %.81.i17.i = icmp slt i64 %position.2.0.i14.i, 0
  %.82.i18.i = select i1 %.81.i17.i, i64 %arg.p9_0, i64 0
  %scevgep.i19.i = getelementptr i8, ptr %arg.p9, i64 %.82.i18.i
  %scevgep1.i20.i = getelementptr i8, ptr %scevgep.i19.i, i64 %position.2.0.i14.i
  store i8 %.66.i16.i, ptr %scevgep1.i20.i, align 1
  %.99.i21.i = add i64 %position.2.0.i14.i, 1
  %.105.i22.i = lshr i64 %folded.2.0.i15.i, 7
  %.112.i23.i = icmp ugt i64 %folded.2.0.i15.i, 16383
  br i1 %.112.i23.i, label %B46.i13.i, label %B40.endif.endif.i

B40.endif.endif.i:
  %position.3.1.i5.i = phi i64 [ %.592.i, %B40.endif.i ], [ %.99.i21.i, %B46.i13.i ]
  %folded.3.1.i6.i = phi i64 [ %.7.i.i3.i, %B40.endif.i ], [ %.105.i22.i, %B46.i13.i ]
  %.119.i7.i = trunc i64 %folded.3.1.i6.i to i8
  %.136.i8.i = icmp slt i64 %position.3.1.i5.i, 0
  %.137.i9.i = select i1 %.136.i8.i, i64 %arg.p9_0, i64 0
  %20 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i5.i
  %.151.i10.i = getelementptr i8, ptr %20, i64 %.137.i9.i
  store i8 %.119.i7.i, ptr %.151.i10.i, align 1
  %.159.i11.i = add nsw i64 %position.3.1.i5.i, 1
  %.674.i = getelementptr i64, ptr %5, i64 %.346.i
  %.675.i = load i64, ptr %.674.i, align 8
  %.5.i.i25.i = shl i64 %.675.i, 1
  %.6.i.i26.i = ashr i64 %.675.i, 63
  %.7.i.i27.i = xor i64 %.5.i.i25.i, %.6.i.i26.i
  %.61.i28.i = icmp ugt i64 %.7.i.i27.i, 127
  br i1 %.61.i28.i, label %B46.i37.i.preheader, label %B40.endif.endif.endif.i

B46.i37.i.preheader:
  br label %B46.i37.i

B46.i37.i:
  %position.2.0.i38.i = phi i64 [ %.99.i45.i, %B46.i37.i ], [ %.159.i11.i, %B46.i37.i.preheader ]
  %folded.2.0.i39.i = phi i64 [ %.105.i46.i, %B46.i37.i ], [ %.7.i.i27.i, %B46.i37.i.preheader ]
  %21 = trunc i64 %folded.2.0.i39.i to i8
  %.66.i40.i = or i8 %21, -128
  %.81.i41.i = icmp slt i64 %position.2.0.i38.i, 0
  %.82.i42.i = select i1 %.81.i41.i, i64 %arg.p9_0, i64 0
  %scevgep.i43.i = getelementptr i8, ptr %arg.p9, i64 %.82.i42.i
  %scevgep1.i44.i = getelementptr i8, ptr %scevgep.i43.i, i64 %position.2.0.i38.i
  store i8 %.66.i40.i, ptr %scevgep1.i44.i, align 1
  %.99.i45.i = add i64 %position.2.0.i38.i, 1
  %.105.i46.i = lshr i64 %folded.2.0.i39.i, 7
  %.112.i47.i = icmp ugt i64 %folded.2.0.i39.i, 16383
  br i1 %.112.i47.i, label %B46.i37.i, label %B40.endif.endif.endif.i

B40.endif.endif.endif.i:
  %position.3.1.i29.i = phi i64 [ %.159.i11.i, %B40.endif.endif.i ], [ %.99.i45.i, %B46.i37.i ]
  %folded.3.1.i30.i = phi i64 [ %.7.i.i27.i, %B40.endif.endif.i ], [ %.105.i46.i, %B46.i37.i ]
  %.119.i31.i = trunc i64 %folded.3.1.i30.i to i8
  %.136.i32.i = icmp slt i64 %position.3.1.i29.i, 0
  %.137.i33.i = select i1 %.136.i32.i, i64 %arg.p9_0, i64 0
  %22 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i29.i
  %.151.i34.i = getelementptr i8, ptr %22, i64 %.137.i33.i
  store i8 %.119.i31.i, ptr %.151.i34.i, align 1
  %.159.i35.i = add nsw i64 %position.3.1.i29.i, 1
  %.756.i = getelementptr i64, ptr %arg.p4, i64 %.287.i
  %.757.i = load i64, ptr %.756.i, align 8
  %.810.i = getelementptr i64, ptr %6, i64 %.287.i
  %.811.i = load i64, ptr %.810.i, align 8
  %.5.i.i.i73.i = shl i64 %.811.i, 1
  %.6.i.i.i74.i = ashr i64 %.811.i, 63
  %.7.i.i.i75.i = xor i64 %.5.i.i.i73.i, %.6.i.i.i74.i
  %.61.i.i76.i = icmp ugt i64 %.7.i.i.i75.i, 127
  br i1 %.61.i.i76.i, label %B46.i.i94.i.preheader, label %B0.endif.i77.i

B46.i.i94.i.preheader:
  br label %B46.i.i94.i

B46.i.i94.i:
  %position.2.0.i.i95.i = phi i64 [ %.99.i.i102.i, %B46.i.i94.i ], [ %.159.i35.i, %B46.i.i94.i.preheader ]
  %folded.2.0.i.i96.i = phi i64 [ %.105.i.i103.i, %B46.i.i94.i ], [ %.7.i.i.i75.i, %B46.i.i94.i.preheader ]
  %23 = trunc i64 %folded.2.0.i.i96.i to i8
  %.66.i.i97.i = or i8 %23, -128
  %.81.i.i98.i = icmp slt i64 %position.2.0.i.i95.i, 0
  %.82.i.i99.i = select i1 %.81.i.i98.i, i64 %arg.p9_0, i64 0
  %scevgep.i.i100.i = getelementptr i8, ptr %arg.p9, i64 %.82.i.i99.i
  %scevgep1.i.i101.i = getelementptr i8, ptr %scevgep.i.i100.i, i64 %position.2.0.i.i95.i
  store i8 %.66.i.i97.i, ptr %scevgep1.i.i101.i, align 1
  %.99.i.i102.i = add i64 %position.2.0.i.i95.i, 1
  %.105.i.i103.i = lshr i64 %folded.2.0.i.i96.i, 7
  %.112.i.i104.i = icmp ugt i64 %folded.2.0.i.i96.i, 16383
  br i1 %.112.i.i104.i, label %B46.i.i94.i, label %B0.endif.i77.i

B50.i89.i:
  %.97.i90.i = getelementptr i8, ptr %arg.p9, i64 %.159.i.i84.i
  %.98.i91.i = getelementptr i8, ptr %arg.p0, i64 %.757.i
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %.97.i90.i, ptr align 1 %.98.i91.i, i64 %.811.i, i1 false)
  %.115.i92.i = add nsw i64 %.159.i.i84.i, %.811.i
  br label %B40.endif.endif.endif.endif.i

B0.endif.i77.i:
  %position.3.1.i.i78.i = phi i64 [ %.159.i35.i, %B40.endif.endif.endif.i ], [ %.99.i.i102.i, %B46.i.i94.i ]
  %folded.3.1.i.i79.i = phi i64 [ %.7.i.i.i75.i, %B40.endif.endif.endif.i ], [ %.105.i.i103.i, %B46.i.i94.i ]
  %.119.i.i80.i = trunc i64 %folded.3.1.i.i79.i to i8
  %.136.i.i81.i = icmp slt i64 %position.3.1.i.i78.i, 0
  %.137.i.i82.i = select i1 %.136.i.i81.i, i64 %arg.p9_0, i64 0
  %24 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i.i78.i
  %.151.i.i83.i = getelementptr i8, ptr %24, i64 %.137.i.i82.i
  store i8 %.119.i.i80.i, ptr %.151.i.i83.i, align 1
  %.159.i.i84.i = add nsw i64 %position.3.1.i.i78.i, 1
  %.78.i85.i = icmp sgt i64 %.811.i, 0
  br i1 %.78.i85.i, label %B50.i89.i, label %B40.endif.endif.endif.endif.i

B40.endif.endif.endif.endif.i:
  %position.1.2.0.i88.i = phi i64 [ %.115.i92.i, %B50.i89.i ], [ %.159.i.i84.i, %B0.endif.i77.i ]
  %.895.i = getelementptr i64, ptr %7, i64 %.287.i
  %.896.i = load i64, ptr %.895.i, align 8
  %.949.i = getelementptr i64, ptr %8, i64 %.287.i
  %.950.i = load i64, ptr %.949.i, align 8
  %.5.i.i.i106.i = shl i64 %.950.i, 1
  %.6.i.i.i107.i = ashr i64 %.950.i, 63
  %.7.i.i.i108.i = xor i64 %.5.i.i.i106.i, %.6.i.i.i107.i
  %.61.i.i109.i = icmp ugt i64 %.7.i.i.i108.i, 127
  br i1 %.61.i.i109.i, label %B46.i.i127.i.preheader, label %B0.endif.i110.i

B46.i.i127.i.preheader:
  br label %B46.i.i127.i

B46.i.i127.i:
  %position.2.0.i.i128.i = phi i64 [ %.99.i.i135.i, %B46.i.i127.i ], [ %position.1.2.0.i88.i, %B46.i.i127.i.preheader ]
  %folded.2.0.i.i129.i = phi i64 [ %.105.i.i136.i, %B46.i.i127.i ], [ %.7.i.i.i108.i, %B46.i.i127.i.preheader ]
  %25 = trunc i64 %folded.2.0.i.i129.i to i8
  %.66.i.i130.i = or i8 %25, -128
  %.81.i.i131.i = icmp slt i64 %position.2.0.i.i128.i, 0
  %.82.i.i132.i = select i1 %.81.i.i131.i, i64 %arg.p9_0, i64 0
  %scevgep.i.i133.i = getelementptr i8, ptr %arg.p9, i64 %.82.i.i132.i
  %scevgep1.i.i134.i = getelementptr i8, ptr %scevgep.i.i133.i, i64 %position.2.0.i.i128.i
  store i8 %.66.i.i130.i, ptr %scevgep1.i.i134.i, align 1
  %.99.i.i135.i = add i64 %position.2.0.i.i128.i, 1
  %.105.i.i136.i = lshr i64 %folded.2.0.i.i129.i, 7
  %.112.i.i137.i = icmp ugt i64 %folded.2.0.i.i129.i, 16383
  br i1 %.112.i.i137.i, label %B46.i.i127.i, label %B0.endif.i110.i

B50.i122.i:
  %.97.i123.i = getelementptr i8, ptr %arg.p9, i64 %.159.i.i117.i
  %.98.i124.i = getelementptr i8, ptr %arg.p1, i64 %.896.i
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %.97.i123.i, ptr align 1 %.98.i124.i, i64 %.950.i, i1 false)
  %.115.i125.i = add nsw i64 %.159.i.i117.i, %.950.i
  br label %B40.endif.endif.endif.endif.endif.i

B0.endif.i110.i:
  %position.3.1.i.i111.i = phi i64 [ %position.1.2.0.i88.i, %B40.endif.endif.endif.endif.i ], [ %.99.i.i135.i, %B46.i.i127.i ]
  %folded.3.1.i.i112.i = phi i64 [ %.7.i.i.i108.i, %B40.endif.endif.endif.endif.i ], [ %.105.i.i136.i, %B46.i.i127.i ]
  %.119.i.i113.i = trunc i64 %folded.3.1.i.i112.i to i8
  %.136.i.i114.i = icmp slt i64 %position.3.1.i.i111.i, 0
  %.137.i.i115.i = select i1 %.136.i.i114.i, i64 %arg.p9_0, i64 0
  %26 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i.i111.i
  %.151.i.i116.i = getelementptr i8, ptr %26, i64 %.137.i.i115.i
  store i8 %.119.i.i113.i, ptr %.151.i.i116.i, align 1
  %.159.i.i117.i = add nsw i64 %position.3.1.i.i111.i, 1
  %.78.i118.i = icmp sgt i64 %.950.i, 0
  br i1 %.78.i118.i, label %B50.i122.i, label %B40.endif.endif.endif.endif.endif.i

B40.endif.endif.endif.endif.endif.i:
  %position.1.2.0.i121.i = phi i64 [ %.115.i125.i, %B50.i122.i ], [ %.159.i.i117.i, %B0.endif.i110.i ]
  %.1033.i = getelementptr i64, ptr %9, i64 %.287.i
  %.1034.i = load i64, ptr %.1033.i, align 8
  %.5.i.i49.i = shl i64 %.1034.i, 1
  %.6.i.i50.i = ashr i64 %.1034.i, 63
  %.7.i.i51.i = xor i64 %.5.i.i49.i, %.6.i.i50.i
  %.61.i52.i = icmp ugt i64 %.7.i.i51.i, 127
  br i1 %.61.i52.i, label %B46.i61.i.preheader, label %B40.endif.endif.endif.endif.endif.endif.endif.i

B46.i61.i.preheader:
  br label %B46.i61.i

B46.i61.i:
  %position.2.0.i62.i = phi i64 [ %.99.i69.i, %B46.i61.i ], [ %position.1.2.0.i121.i, %B46.i61.i.preheader ]
  %folded.2.0.i63.i = phi i64 [ %.105.i70.i, %B46.i61.i ], [ %.7.i.i51.i, %B46.i61.i.preheader ]
  %27 = trunc i64 %folded.2.0.i63.i to i8
  %.66.i64.i = or i8 %27, -128
  %.81.i65.i = icmp slt i64 %position.2.0.i62.i, 0
  %.82.i66.i = select i1 %.81.i65.i, i64 %arg.p9_0, i64 0
  %scevgep.i67.i = getelementptr i8, ptr %arg.p9, i64 %.82.i66.i
  %scevgep1.i68.i = getelementptr i8, ptr %scevgep.i67.i, i64 %position.2.0.i62.i
  store i8 %.66.i64.i, ptr %scevgep1.i68.i, align 1
  %.99.i69.i = add i64 %position.2.0.i62.i, 1
  %.105.i70.i = lshr i64 %folded.2.0.i63.i, 7
  %.112.i71.i = icmp ugt i64 %folded.2.0.i63.i, 16383
  br i1 %.112.i71.i, label %B46.i61.i, label %B40.endif.endif.endif.endif.endif.endif.endif.i

B40.endif.endif.endif.endif.endif.endif.endif.i:
  %position.3.1.i53.i = phi i64 [ %position.1.2.0.i121.i, %B40.endif.endif.endif.endif.endif.i ], [ %.99.i69.i, %B46.i61.i ]
  %folded.3.1.i54.i = phi i64 [ %.7.i.i51.i, %B40.endif.endif.endif.endif.endif.i ], [ %.105.i70.i, %B46.i61.i ]
  %.119.i55.i = trunc i64 %folded.3.1.i54.i to i8
  %.136.i56.i = icmp slt i64 %position.3.1.i53.i, 0
  %.137.i57.i = select i1 %.136.i56.i, i64 %arg.p9_0, i64 0
  %28 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i53.i
  %.151.i58.i = getelementptr i8, ptr %28, i64 %.137.i57.i
  store i8 %.119.i55.i, ptr %.151.i58.i, align 1
  %.159.i59.i = add nsw i64 %position.3.1.i53.i, 1
  %.1200624.not.i = icmp slt i64 %.1034.i, 1
  br i1 %.1200624.not.i, label %B870.i, label %B670.preheader.i

B670.preheader.i:
  %.1118.i = getelementptr i64, ptr %10, i64 %.287.i
  %.1119.i = load i64, ptr %.1118.i, align 8
  br label %B670.i

B670.endif.i:
  %position.1.2.0.i.i = phi i64 [ %.115.i.i, %B50.i.i ], [ %.159.i.i.i, %B0.endif.i.i ]
  %.1430.i = getelementptr i64, ptr %12, i64 %.1269.i
  %.1431.i = load i64, ptr %.1430.i, align 8
  %.1484.i = getelementptr i64, ptr %13, i64 %.1269.i
  %.1485.i = load i64, ptr %.1484.i, align 8
  %.5.i.i.i139.i = shl i64 %.1485.i, 1
  %.6.i.i.i140.i = ashr i64 %.1485.i, 63
  %.7.i.i.i141.i = xor i64 %.5.i.i.i139.i, %.6.i.i.i140.i
  %.61.i.i142.i = icmp ugt i64 %.7.i.i.i141.i, 127
  br i1 %.61.i.i142.i, label %B46.i.i160.i.preheader, label %B0.endif.i143.i

B46.i.i160.i.preheader:
  br label %B46.i.i160.i

B46.i.i160.i:
  %position.2.0.i.i161.i = phi i64 [ %.99.i.i168.i, %B46.i.i160.i ], [ %position.1.2.0.i.i, %B46.i.i160.i.preheader ]
  %folded.2.0.i.i162.i = phi i64 [ %.105.i.i169.i, %B46.i.i160.i ], [ %.7.i.i.i141.i, %B46.i.i160.i.preheader ]
  %29 = trunc i64 %folded.2.0.i.i162.i to i8
  %.66.i.i163.i = or i8 %29, -128
  %.81.i.i164.i = icmp slt i64 %position.2.0.i.i161.i, 0
  %.82.i.i165.i = select i1 %.81.i.i164.i, i64 %arg.p9_0, i64 0
  %scevgep.i.i166.i = getelementptr i8, ptr %arg.p9, i64 %.82.i.i165.i
  %scevgep1.i.i167.i = getelementptr i8, ptr %scevgep.i.i166.i, i64 %position.2.0.i.i161.i
  store i8 %.66.i.i163.i, ptr %scevgep1.i.i167.i, align 1
  %.99.i.i168.i = add i64 %position.2.0.i.i161.i, 1
  %.105.i.i169.i = lshr i64 %folded.2.0.i.i162.i, 7
  %.112.i.i170.i = icmp ugt i64 %folded.2.0.i.i162.i, 16383
  br i1 %.112.i.i170.i, label %B46.i.i160.i, label %B0.endif.i143.i

B50.i155.i:
  %.97.i156.i = getelementptr i8, ptr %arg.p9, i64 %.159.i.i150.i
  %.98.i157.i = getelementptr i8, ptr %arg.p3, i64 %.1431.i
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %.97.i156.i, ptr align 1 %.98.i157.i, i64 %.1485.i, i1 false)
  %.115.i158.i = add nsw i64 %.159.i.i150.i, %.1485.i
  br label %B668.backedge.i

B0.endif.i143.i:
  %position.3.1.i.i144.i = phi i64 [ %position.1.2.0.i.i, %B670.endif.i ], [ %.99.i.i168.i, %B46.i.i160.i ]
  %folded.3.1.i.i145.i = phi i64 [ %.7.i.i.i141.i, %B670.endif.i ], [ %.105.i.i169.i, %B46.i.i160.i ]
  %.119.i.i146.i = trunc i64 %folded.3.1.i.i145.i to i8
  %.136.i.i147.i = icmp slt i64 %position.3.1.i.i144.i, 0
  %.137.i.i148.i = select i1 %.136.i.i147.i, i64 %arg.p9_0, i64 0
  %30 = getelementptr i8, ptr %arg.p9, i64 %position.3.1.i.i144.i
  %.151.i.i149.i = getelementptr i8, ptr %30, i64 %.137.i.i148.i
  store i8 %.119.i.i146.i, ptr %.151.i.i149.i, align 1
  %.159.i.i150.i = add nsw i64 %position.3.1.i.i144.i, 1
  %.78.i151.i = icmp sgt i64 %.1485.i, 0
  br i1 %.78.i151.i, label %B50.i155.i, label %B668.backedge.i

B668.backedge.i:
  %position.1.2.0.i154.i = phi i64 [ %.115.i158.i, %B50.i155.i ], [ %.159.i.i150.i, %B0.endif.i143.i ]
  %.1200.i = icmp ugt i64 %.1199620626.i, 1
  br i1 %.1200.i, label %B670.i, label %B870.i
}
