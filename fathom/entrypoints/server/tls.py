"""TLS: certificates are tried before anything is started; uvicorn then reads them again and does the rest."""

from __future__ import annotations

import ssl

from fathom.errors import ConfigError


def check_tls(certfile: str | None, keyfile: str | None, ca_certs: str | None, cert_reqs: int) -> None:
    """Try the options of the same names.

    Raises:
        ConfigError: a file cannot be used, or an option is of no use without another.
    """
    if cert_reqs not in (0, 1, 2):
        raise ConfigError(
            f"ssl_cert_reqs must be 0, 1 or 2, got {cert_reqs}.", parameter="ssl_cert_reqs", value=cert_reqs
        )
    if certfile is None:
        for name, value in (("ssl_keyfile", keyfile), ("ssl_ca_certs", ca_certs), ("ssl_cert_reqs", cert_reqs or None)):
            if value is not None:
                raise ConfigError(f"{name} needs ssl_certfile.", parameter=name, value=value)
        return
    if (ca_certs is None) == bool(cert_reqs):
        raise ConfigError(
            f"ssl_cert_reqs={cert_reqs} {'without' if ca_certs is None else 'with'} ssl_ca_certs would let "
            f"{'nobody' if ca_certs is None else 'everybody'} in.",
            parameter="ssl_cert_reqs",
            value=cert_reqs,
            hint="Give clients' authorities with ssl_ca_certs, and 1 (may have a certificate) or 2 (must).",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, _no_password)
    except (OSError, ValueError) as error:
        raise _unusable("ssl_certfile", certfile, error) from None
    try:
        context.load_verify_locations(ca_certs) if ca_certs is not None else None
    except OSError as error:
        raise _unusable("ssl_ca_certs", ca_certs, error) from None


def _no_password() -> str:
    """Called if the key is encrypted; without it, the terminal would be asked."""
    raise ValueError("the key is encrypted; `openssl pkey -in KEY -out NEW` decrypts it")


def _unusable(name: str, path: str | None, error: Exception) -> ConfigError:
    why = error.strerror if isinstance(error, FileNotFoundError) else error
    return ConfigError(f"{name} {path} cannot be used: {why}.", parameter=name, value=path)
