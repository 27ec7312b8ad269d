/** The mark: a tuning fork. */
export function Mark({ className = 'size-7' }: { className?: string }) {
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
