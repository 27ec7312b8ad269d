import { useState } from 'react'
import { leastPassword } from '../lib/secret.ts'
import { Field, Input } from './field.tsx'

/** Why a new password cannot be sent yet. */
export const missingIn = (password: string) =>
  password.length < leastPassword && `Enter a password of at least ${leastPassword} characters.`

/** A new password, which can be looked at instead of typed twice. `error` is the API's. */
export function NewPassword({
  value,
  onChange,
  error,
}: {
  value: string
  onChange: (value: string) => void
  error?: string | undefined
}) {
  const [shown, setShown] = useState(false)
  const [left, setLeft] = useState(false)
  const short = left && value !== '' && value.length < leastPassword
  return (
    <Field
      label="Password"
      help={`At least ${leastPassword} characters; a sentence is good.`}
      error={error ?? (short ? `It has ${value.length} of ${leastPassword} characters.` : undefined)}
    >
      <div className="relative">
        <Input
          type={shown ? 'text' : 'password'}
          name="new-password"
          autoComplete="new-password"
          required
          className="pr-16"
          value={value}
          onBlur={() => setLeft(true)}
          onChange={(event) => onChange(event.target.value)}
        />
        <button
          type="button"
          aria-pressed={shown}
          aria-label="Show the password"
          className="absolute inset-y-0 right-1 my-1 rounded-sm px-2 text-sm text-muted hover:bg-hover hover:text-ink"
          onClick={() => setShown(!shown)}
        >
          {shown ? 'Hide' : 'Show'}
        </button>
      </div>
    </Field>
  )
}
