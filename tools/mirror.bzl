"""Files of one package in a folder of another."""

def _mirror_impl(ctx):
    outputs = []
    for source in ctx.files.srcs:
        package = source.owner.package
        path = source.short_path[len(package) + 1:]
        output = ctx.actions.declare_file(ctx.attr.folder + path)
        ctx.actions.symlink(output = output, target_file = source)
        outputs.append(output)
    files = depset(outputs)
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(outputs))]

mirror = rule(
    implementation = _mirror_impl,
    attrs = {
        "folder": attr.string(doc = "Where to, within this package: empty, or a path that ends in a slash."),
        "srcs": attr.label_list(allow_files = True),
    },
    doc = "Links to `srcs`, each at the path that it has in its own package.",
)

def _expand_impl(ctx):
    ctx.actions.expand_template(
        template = ctx.file.template,
        output = ctx.outputs.out,
        substitutions = ctx.attr.substitutions,
    )

expand = rule(
    implementation = _expand_impl,
    attrs = {
        "out": attr.output(mandatory = True),
        "substitutions": attr.string_dict(),
        "template": attr.label(allow_single_file = True, mandatory = True),
    },
    doc = "A template with its placeholders replaced.",
)
