import { execFileSync, spawnSync } from 'node:child_process'
import path from 'node:path'

/** Writes a self-signed certificate for a host name into `folder`, with OpenSSL. Returns the paths. */
export function makeCertificate(folder: string, host: string): { key: string; certificate: string } {
  const [key, certificate] = [path.join(folder, 'key.pem'), path.join(folder, 'certificate.pem')]
  const names = ['-subj', `/CN=${host}`, '-addext', `subjectAltName=DNS:${host}`]
  const algorithm = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes']
  const args = ['req', '-x509', ...algorithm, '-days', '2', ...names, '-keyout', key, '-out', certificate]
  execFileSync('openssl', args, { stdio: 'pipe' })
  return { key, certificate }
}

/** Why tests that need a certificate are skipped; false where OpenSSL is installed. */
export const noOpenssl =
  spawnSync('openssl', ['version']).status === 0 ? false : 'openssl, which makes the certificate, is not installed'
