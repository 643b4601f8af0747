# Every kind of value.
break look
break report
run tensors
up-silently
info locals
print shape
print nothing
print x
print &x
print *x.impl_
print *x.impl_->storage
print *large.impl_->storage
continue
run errors
print error
run train
up-silently
print model
print tape
print y
