# Graphs, their nodes and values, and sizes of named dimensions.
break look
run graphs
up-silently
print graph
print node
print x
print y
print graph.parameters_._M_impl._M_start[0][0]
print size
print x.shape._M_impl._M_start[0]
