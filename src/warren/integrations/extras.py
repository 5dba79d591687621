"""The error of an integration whose packages are not installed: Warren's extras bring them."""


def missing_package(exc: ModuleNotFoundError, module: str, extra: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"{module} needs the package {exc.name}, which is not installed: pip install 'warren-sandbox[{extra}]'",
        name=exc.name,
    )
