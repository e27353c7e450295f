#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table behind cudaGetErrorName/String from the toolkit's driver_types.h.
usage: gen_error_names.py .../include/driver_types.h > error_names.inc"""
import re
import sys

# Texts programs are known to compare or print; the others are spelled out from their names.
TEXTS = {
    'cudaSuccess': 'no error', 'cudaErrorInvalidValue': 'invalid argument', 'cudaErrorMemoryAllocation': 'out of memory',
    'cudaErrorInvalidConfiguration': 'invalid configuration argument', 'cudaErrorInvalidSymbol': 'invalid device symbol',
    'cudaErrorInvalidDeviceFunction': 'invalid device function', 'cudaErrorInvalidDevice': 'invalid device ordinal',
    'cudaErrorIllegalAddress': 'an illegal memory access was encountered', 'cudaErrorMisalignedAddress': 'misaligned address',
    'cudaErrorLaunchFailure': 'unspecified launch failure', 'cudaErrorLaunchTimeout': 'the launch timed out and was terminated',
    'cudaErrorLaunchOutOfResources': 'too many resources requested for launch', 'cudaErrorAssert': 'device-side assert triggered',
    'cudaErrorNotSupported': 'operation not supported', 'cudaErrorCooperativeLaunchTooLarge': 'too many blocks in cooperative launch',
    'cudaErrorNoKernelImageForDevice': 'no kernel image is available for execution on the device',
    'cudaErrorInvalidPtx': 'a PTX JIT compilation failed', 'cudaErrorInvalidResourceHandle': 'invalid resource handle',
    'cudaErrorInvalidMemcpyDirection': 'invalid copy direction for memcpy', 'cudaErrorNotReady': 'device not ready',
    'cudaErrorStreamCaptureUnsupported': 'operation not permitted when stream is capturing',
    'cudaErrorStreamCaptureInvalidated': 'operation failed due to a previous error during capture',
    'cudaErrorStreamCaptureImplicit': 'operation would make the legacy stream depend on a capturing blocking stream',
}

with open(sys.argv[1]) as header: text = header.read()
body = re.search(r'enum\s+\S*\s*cudaError\s*\{(.*?)\n\};', text, re.S).group(1)
body = re.sub(r'/\*.*?\*/', '', body, flags=re.S)
for name, value in re.findall(r'(cuda\w+)\s*=\s*(\d+)', body):
    spelled = re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', name.replace('cudaError', '', 1)).lower()
    print('{%s, "%s", "%s"},' % (value, name, TEXTS.get(name, spelled)))
