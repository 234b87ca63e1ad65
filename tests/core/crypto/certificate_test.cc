#include "core/crypto/certificate.h"

#include <memory>
#include <string>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::crypto {
namespace {

using ::testing::HasSubstr;

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, size);
  BIO_free(bio);
  return text;
}

// A key and certificates that it signs for itself.
class Issuer {
 public:
  Issuer() : key_(EVP_EC_gen("P-256")) {}
  ~Issuer() { EVP_PKEY_free(key_); }

  std::string KeyPem(const char* passphrase = nullptr) const {
    BIO* bio = BIO_new(BIO_s_mem());
    const EVP_CIPHER* cipher = passphrase == nullptr ? nullptr : EVP_aes_128_cbc();
    PEM_write_bio_PKCS8PrivateKey(bio, key_, cipher, passphrase,
                                  passphrase == nullptr ? 0 : int(strlen(passphrase)), nullptr,
                                  nullptr);
    return Text(bio);
  }

  std::string CertificatePem(absl::Time from, absl::Time until) const {
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(from));
    ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(until));
    X509_set_pubkey(certificate, key_);
    X509_sign(certificate, key_, EVP_sha256());
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, certificate);
    X509_free(certificate);
    return Text(bio);
  }

 private:
  EVP_PKEY* const key_;
};

const absl::Time kFrom = absl::FromUnixSeconds(1700000000);
const absl::Time kUntil = kFrom + absl::Hours(24);

std::string Told(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CertificateTest, ABundleIsValidWhileAllOfItIs) {
  const Issuer issuer;
  const auto bundle =
      ReadCertificates(issuer.CertificatePem(kFrom, kUntil) +
                       issuer.CertificatePem(kFrom + absl::Hours(1), kUntil + absl::Hours(1)));
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(*bundle, (CertificateBundle{2, kFrom + absl::Hours(1), kUntil}));
}

TEST(CertificateTest, TextAroundCertificatesIsIgnored) {
  const auto bundle =
      ReadCertificates("subject: x\n" + Issuer().CertificatePem(kFrom, kUntil) + "# end\n");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(bundle->count, 1);
}

TEST(CertificateTest, WhatHoldsNoCertificateIsRefused) {
  EXPECT_EQ(Told(ReadCertificates("").status()), "expected PEM certificates, got none");
  EXPECT_EQ(Told(ReadCertificates("hello").status()), "expected PEM certificates, got none");
  EXPECT_EQ(Told(ReadCertificates(Issuer().KeyPem()).status()),
            "expected PEM certificates, got none");
}

TEST(CertificateTest, ADamagedCertificateAfterAGoodOneIsSeen) {
  const Issuer issuer;
  const std::string good = issuer.CertificatePem(kFrom, kUntil);
  std::string bad = good;
  bad.replace(bad.size() / 2, 4, "!!!!");
  EXPECT_EQ(Told(ReadCertificates(good + bad).status()),
            "expected PEM certificates, got damaged bytes after 1");
  EXPECT_EQ(Told(ReadCertificates(good + good.substr(0, good.size() / 2)).status()),
            "expected PEM certificates, got damaged bytes after 1");
}

TEST(CertificateTest, AKeyFitsItsOwnCertificateOnly) {
  const Issuer mine;
  const Issuer other;
  const std::string chain = mine.CertificatePem(kFrom, kUntil);
  EXPECT_EQ(CheckPrivateKey(chain, mine.KeyPem()), absl::OkStatus());
  EXPECT_EQ(Told(CheckPrivateKey(chain, other.KeyPem())),
            "expected the private key of the first certificate, got another");
  EXPECT_THAT(Told(CheckPrivateKey(chain, "hello")), HasSubstr("private key in PEM, got none"));
  EXPECT_THAT(Told(CheckPrivateKey(chain, mine.KeyPem("secret"))), HasSubstr("an encrypted one"));
  EXPECT_THAT(Told(CheckPrivateKey("", mine.KeyPem())), HasSubstr("got none"));
}

}  // namespace
}  // namespace kvbridge::crypto
