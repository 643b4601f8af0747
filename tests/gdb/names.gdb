# The names that tapes, profiles and errors give an op stop at it, also where it begins under another.
break writes
run writes
tapir break sgd
tapir break adam
tapir break fill
tapir break uniform
tapir break bernoulli_fill
tapir break ones_like
continue
continue
continue
continue
continue
continue
continue
# Of a Function its backward stops; with its namespace, with characters that are none of a name, or by a pattern.
delete
tapir break Clip
tapir break mine::Clip
tapir break my-pow
tapir break my-pow backward
tapir break Times<int>
tapir break *ip backward
run functions
continue
continue
continue
# Other names of a function.
delete
tapir break concat
tapir break broadcast_to
tapir break part
tapir break mm
tapir break to
run ops
continue
delete
tapir break step
run writes
continue
# Of other texts of the program only a Function may have the name.
delete
tapir break cell
# Ends of texts, and names of types, are no ops.
python
for wrong in ("l", "ul", "Model", "my-pov", "tapir::Function"):
    try:
        gdb.execute("tapir break " + wrong)
    except gdb.error as error:
        print("error:", str(error).split(",")[0].split(";")[0])
end
