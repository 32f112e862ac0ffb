"""Areas of the Python library: the labels of the text in every Python installation."""

from __future__ import annotations

PACKAGES = ("torch", "numpy", "sympy", "networkx")

# Areas of the standard library, after the chapters of its reference, by the first part of the module's name.
AREAS = {
    "language": "topics ast dis opcode symtable token tokenize keyword inspect importlib imp pkgutil runpy code codeop "
    "zipimport modulefinder lib2to3 compileall py_compile pyclbr tabnanny __future__ types typing dataclasses abc "
    "contextlib functools operator site warnings _sitebuiltins copyreg pickletools atexit gc builtins",
    "text": "string re difflib textwrap unicodedata stringprep codecs encodings gettext locale pprint reprlib "
    "sre_parse sre_compile sre_constants shlex",
    "data": "collections heapq bisect array weakref copy enum graphlib calendar datetime _pydatetime _strptime "
    "zoneinfo queue _collections_abc _weakrefset uuid sched time",
    "numbers": "decimal _pydecimal fractions numbers statistics random math cmath secrets _pylong colorsys ipaddress",
    "files": "pathlib os posixpath ntpath genericpath nturl2path fileinput stat filecmp tempfile glob fnmatch "
    "linecache shutil io _pyio pickle shelve dbm sqlite3 csv configparser tomllib netrc plistlib zlib gzip bz2 lzma "
    "zipfile tarfile _compression xdrlib mimetypes aifc chunk sunau wave sndhdr imghdr",
    "system": "subprocess platform ctypes getpass pty tty pipes crypt signal sysconfig _osx_support _aix_support errno "
    "posix resource syslog logging getopt argparse optparse hashlib hmac curses",
    "concurrency": "threading multiprocessing concurrent asyncio selectors asyncore asynchat _threading_local "
    "contextvars _pyrepl",
    "network": "socket ssl http urllib ftplib poplib imaplib smtplib smtpd telnetlib nntplib socketserver xmlrpc "
    "wsgiref cgi cgitb webbrowser mailcap",
    "markup": "email json mailbox base64 quopri uu html xml _markupbase binhex",
    "interface": "tkinter turtle turtledemo idlelib cmd readline rlcompleter",
    "development": "unittest doctest pdb bdb pydoc trace traceback tracemalloc timeit cProfile profile pstats test "
    "distutils ensurepip venv zipapp faulthandler",
}
_AREA_OF = {name: area for area, names in AREAS.items() for name in names.split()}
# The same for the packages: the longest prefix of the module's name decides.
PACKAGE_AREAS = {
    "torch": "deep learning",
    "torch.distributed": "distributed training",
    "torch._inductor": "compilers",
    "torch._dynamo": "compilers",
    "torch._functorch": "compilers",
    "torch._export": "compilers",
    "torch.export": "compilers",
    "torch.fx": "compilers",
    "torch.jit": "compilers",
    "torch._higher_order_ops": "compilers",
    "torch.onnx": "compilers",
    "torch.ao": "quantization",
    "torch.quantization": "quantization",
    "torch.distributions": "statistics",
    "numpy": "arrays",
    "numpy.random": "statistics",
    "sympy": "symbolic mathematics",
    "sympy.polys": "algebra",
    "sympy.combinatorics": "algebra",
    "sympy.matrices": "algebra",
    "sympy.ntheory": "algebra",
    "sympy.physics": "physics",
    "sympy.geometry": "geometry",
    "sympy.vector": "geometry",
    "sympy.diffgeom": "geometry",
    "sympy.stats": "statistics",
    "networkx": "graphs",
}


def area_of(module: str) -> str:
    """The area of the library that a module belongs to; the empty string if none is known."""
    parts = module.split(".")
    if parts[0] in PACKAGES:
        prefixes = [".".join(parts[:number]) for number in range(len(parts), 0, -1)]
        return next(PACKAGE_AREAS[prefix] for prefix in prefixes if prefix in PACKAGE_AREAS)
    return _AREA_OF.get(parts[0], "")
