// A security key in software.
import { createHash, createSign, generateKeyPairSync, randomBytes } from 'node:crypto'
import { isoCBOR } from '@simplewebauthn/server/helpers'

/** Bits of an answer: someone is there, and was verified. */
const present = 0x01
const verified = 0x04
/** The answer has a new credential. */
const attested = 0x40

/** What an authenticator without attestation does: ES256. `flags`: of its answers, besides that someone is there. */
export function createAuthenticator(origin: string, flags = verified) {
  const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const id = randomBytes(16)
  const rpHash = createHash('sha256').update(new URL(origin).hostname).digest()
  const { x, y } = publicKey.export({ format: 'jwk' })
  const cose = isoCBOR.encode(
    new Map<number, number | Uint8Array>([
      ...([
        [1, 2],
        [3, -7],
        [-1, 1],
      ] as const),
      [-2, new Uint8Array(Buffer.from(x!, 'base64url'))],
      [-3, new Uint8Array(Buffer.from(y!, 'base64url'))],
    ]),
  )
  let counter = 0
  const data = (type: string, challenge: string) => Buffer.from(JSON.stringify({ type, challenge, origin }))
  const base64 = (bytes: Uint8Array) => Buffer.from(bytes).toString('base64url')
  const head = (more = 0) => {
    const count = Buffer.alloc(4)
    count.writeUInt32BE(++counter)
    return Buffer.concat([rpHash, Buffer.from([present | flags | more]), count])
  }
  const common = { id: base64(id), rawId: base64(id), type: 'public-key', clientExtensionResults: {} }
  return {
    /** As if its state had been copied earlier. */
    rewind() {
      counter = 0
    },
    create({ challenge }: { challenge: string }) {
      const credential = Buffer.concat([Buffer.alloc(16), Buffer.from([0, id.length]), id, cose])
      const attestation = new Map<string, unknown>([
        ['fmt', 'none'],
        ['attStmt', new Map()],
        ['authData', new Uint8Array(Buffer.concat([head(attested), credential]))],
      ])
      const response = {
        clientDataJSON: base64(data('webauthn.create', challenge)),
        attestationObject: base64(isoCBOR.encode(attestation as never)),
      }
      return { ...common, response }
    },
    get({ challenge }: { challenge: string }) {
      const client = data('webauthn.get', challenge)
      const auth = head()
      const signed = createSign('sha256').update(auth).update(createHash('sha256').update(client).digest())
      const response = {
        clientDataJSON: base64(client),
        authenticatorData: base64(auth),
        signature: base64(signed.sign(privateKey)),
      }
      return { ...common, response }
    },
  }
}
