import { KeyRound } from 'lucide-react'
import { type ReactNode, useEffect } from 'react'
import { passkeysWork } from '../lib/sign-in.ts'
import { Button } from './button.tsx'

/** The mark: a tuning fork. */
function Mark({ className = 'size-7' }: { className?: string }) {
  return (
    <svg viewBox="0 0 32 32" aria-hidden className={className}>
      <rect width="32" height="32" rx="8" className="fill-accent" />
      <path d="M11 7v7.5a5 5 0 0 0 10 0V7M16 19.5V26" fill="none" stroke="#fff" strokeWidth="3" strokeLinecap="round" />
    </svg>
  )
}

export const Brand = () => (
  <span className="flex items-center gap-2.5 text-lg font-semibold tracking-tight">
    <Mark />
    Tunery
  </span>
)

/** A page without the shell: one card in the middle, for those who are not signed in. */
export function Centered({
  title,
  description,
  children,
  footer,
}: {
  title: string
  description?: ReactNode | undefined
  children: ReactNode
  footer?: ReactNode
}) {
  useEffect(() => {
    document.title = `${title} · Tunery`
  }, [title])
  return (
    <main className="flex min-h-dvh flex-col items-center px-4 py-10 sm:pt-[14vh]">
      <Brand />
      <div className="mt-6 w-full max-w-sm rounded-xl bg-surface p-6 shadow-pop ring-1 ring-line">
        <h1 className="text-xl font-semibold tracking-tight">{title}</h1>
        {description && <div className="mt-1 text-muted">{description}</div>}
        <div className="mt-5 grid gap-4">{children}</div>
      </div>
      {footer && <div className="mt-4 max-w-sm text-center text-sm text-muted">{footer}</div>}
    </main>
  )
}

/** Between two ways to do the same. */
export const Or = () => (
  <div aria-hidden className="flex items-center gap-3 text-sm text-muted">
    <span className="h-px flex-1 bg-line" />
    or
    <span className="h-px flex-1 bg-line" />
  </div>
)

/** A way in by a passkey, where the browser has them. */
export function PasskeyButton({
  busy,
  onClick,
  children,
}: {
  busy: boolean
  onClick: () => void
  children: ReactNode
}) {
  const works = passkeysWork()
  return (
    <>
      <Button icon={<KeyRound aria-hidden />} busy={busy} disabled={!works} onClick={onClick}>
        {children}
      </Button>
      {!works && <p className="text-sm text-muted">Passkeys need HTTPS or localhost.</p>}
    </>
  )
}
