"""An authority of tests' own, and certificates of it."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)


@dataclass
class Files:
    """An authority, and PEM files of certificates of it."""

    directory: Path
    authority: trustme.CA

    @classmethod
    def make(cls, directory: Path) -> "Files":
        made = cls(directory, trustme.CA())
        made.authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        made.issue("server", "localhost")
        made.issue("client", "client.example")
        return made

    def issue(self, name: str, host: str) -> None:
        """Write a certificate and its key anew."""
        issued = self.authority.issue_cert(host)
        issued.private_key_pem.write_to_path(str(self.path(f"{name}.key")))
        with self.path(f"{name}.pem").open("wb") as file:
            for blob in issued.cert_chain_pems:
                file.write(blob.bytes())

    def path(self, name: str) -> Path:
        return self.directory / name

    @property
    def flags(self) -> list[str]:
        return [
            f"--tls-certificate-file={self.path('server.pem')}",
            f"--tls-key-file={self.path('server.key')}",
        ]

    @property
    def client_flags(self) -> list[str]:
        return [*self.flags, f"--tls-client-ca-file={self.path('ca.pem')}"]

    def issue_named(
        self, name: str, *, uris: tuple[str, ...] = (), dns: tuple[str, ...] = (), cn: str = ""
    ) -> None:
        """Write a client's certificate and its key with exactly these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        common = [x509.NameAttribute(x509.NameOID.COMMON_NAME, cn)] if cn else []
        authority = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(common))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )
        if uris or dns:
            names = [
                *map(x509.DNSName, dns),
                *map(x509.UniformResourceIdentifier, uris),
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not cn)
        signer = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        signed = builder.sign(signer, hashes.SHA256())
        self.path(f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        self.path(f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
